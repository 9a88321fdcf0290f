"""The merge page's own script: it keeps the form in the browser and asks for an inspection a moment after a change.

All of it stands in gradio's `js=`; what one function leaves for the next is in `window.hm`. The values are those of
`MergeForm.kept`: the recipe's, then suite, owner, name, visibility and license. The browser keeps them in one entry
with the address that stands for them, and nothing before the page has filled its form.
"""

PAUSE_MS = 700  # from the last change to the inspection

# The variants of an address stay in it when the form is written there anew.
_VARIANTS = """const variants = () => { const own = new URLSearchParams(location.search);
    return ["also", "vary"].flatMap((key) => own.getAll(key).map((value) => `&${key}=${written(value)}`)).join(""); };
  const written = (value) => encodeURIComponent(value).replaceAll("%2C", ",").replaceAll("%3A", ":");"""

# A tab keeps its own form, and the browser the last one of all tabs. A browser may refuse storage inside a frame; the
# form then works without memory. One without a model is not kept: it would empty what a quick visitor chooses.
_STORE = """const store = () => { const {opened, values, proposed} = (window.hm ??= {});
    const entry = JSON.stringify({address: location.search, values, proposed});
    try { if (!opened) return;
      for (const kept of [sessionStorage, localStorage])
        if (values[0] || values[1]?.length) kept.setItem("hubmerge-form", entry);
        else kept.removeItem("hubmerge-form"); } catch { } };"""

# Methods, then each setting with its values, as they stand in the form.
SWEPT = f"""(methods, ...parts) => {{
  {_VARIANTS}
  {_STORE}
  let now = (methods || []).map((name) => `&also=${{written(name)}}`).join("");
  for (let k = 0; k < parts.length; k += 2)
    if (parts[k] && parts[k + 1]) now += `&vary=${{written(parts[k] + ":" + parts[k + 1])}}`;
  const rest = location.search.replace(/[?&](also|vary)=[^&]*/g, "").replace(/^&/, "?");
  history.replaceState(history.state, "", location.pathname + (rest ? rest + now : now.replace("&", "?")));
  store();
}}"""

COUNT = """() => { document.querySelector("#count-variants")?.click(); }"""

# The bar's own button knows how, within the Hub's frame, too.
SIGN_IN = """() => { document.querySelector("#sign-in")?.click(); }"""

# What a button is answered with is brought into sight, since on a phone it stands below the form.
SHOW_SAID = """() => setTimeout(() => {
  const said = document.querySelector("#said"), {top, bottom} = said?.getBoundingClientRect() ?? {};
  if (top < 0 || bottom > innerHeight) said.scrollIntoView({block: "center"});
}, 100)"""

# To the job's page: its id, and what else its address says.
GO = f"""(asked) => {{
  if (asked) window.location.assign("job?id=" + asked);
  else ({SHOW_SAID})();
}}"""

# What was kept, where the page opens with the address that it was kept for, or with none, and then takes that one.
# The form takes no keys and clicks before it is filled, which would replace what they chose.
KEPT = """() => { try {
  const form = document.querySelector(".hm-form");
  form.inert = true;
  setTimeout(() => { form.inert = false; }, 10000);  // an answer that never comes must not lock it
  const [own, last] = [sessionStorage, localStorage].map((kept) => kept.getItem("hubmerge-form"));
  const {address, values, proposed} = JSON.parse(own ?? last);
  const asks = [...new URLSearchParams(location.search).keys()].some((key) => !key.startsWith("__"));
  if (!asks) history.replaceState(history.state, "", location.pathname + address); // the Hub's frame adds __theme
  if (address !== location.search) return [null];
  (window.hm ??= {}).proposed = proposed;
  return [values];
} catch { return [null]; } }"""

# An empty form. The address of the one that is left holds its recipe, so that the browser's way back leads to it.
START_OVER = """() => {
  (window.hm ??= {}).opened = false;
  try { for (const kept of [sessionStorage, localStorage]) kept.removeItem("hubmerge-form"); } catch { }
  window.location.assign(location.pathname);
}"""

# What follows from other models, once for each; before it, names for a text that is no name of a model alone.
CHOSEN = """(base, agents) => {
  const hm = (window.hm ??= {});
  const now = JSON.stringify([base, agents]);
  const address = (text) => /^(www\\.)?(hf|huggingface)\\.co\\//.test(text);
  const named = (text) => /^[\\w.-]+(\\/[\\w.-]+)?(@[^\\s,;]+)?$/.test(text) && !address(text);
  if (hm.chosen === now) return;
  hm.chosen = now;
  if (![base, ...(agents || [])].every((text) => !text || named(text))) document.querySelector("#name-models").click();
  document.querySelector("#models-chosen").click();
  document.querySelector("#weigh-models").click();
}"""

# The offered agents that are chosen. An answer of the server would come after the next click and undo it.
TICKED = "(agents, offered) => [(offered || []).filter((name) => (agents || []).includes(name))]"

# The agents after one of the offered was ticked or unticked; the order of the others is kept.
WITH_TICKED = """(agents, offered, ticked) => {
  const kept = (agents || []).filter((name) => ticked.includes(name) || !(offered || []).includes(name));
  return [[...kept, ...ticked.filter((name) => !kept.includes(name))]];
}"""

# Suite, owner, name and visibility change nothing of what is inspected. A second inspection waits for the first.
KEEP = f"""(...values) => {{
  {_STORE}
  const hm = (window.hm ??= {{}});
  hm.values = values;
  store();
  hm.wanted = JSON.stringify([values.slice(0, -5), values.at(-1)]);
  hm.ask = () => {{
    clearTimeout(hm.timer);
    if (!hm.opened || hm.asked === hm.wanted) return;
    const button = document.querySelector("#inspect");
    if (hm.busy || !button || button.disabled) hm.timer = setTimeout(hm.ask, {PAUSE_MS});
    else button.click();
  }};
  clearTimeout(hm.timer);
  hm.timer = setTimeout(hm.ask, {PAUSE_MS});
}}"""

# Nothing is asked for a form without a model, nor before it is filled. An address that names a job becomes the form's
# own, since the form may change.
OPENED = f"""(address, ...values) => {{
  if (address) history.replaceState(history.state, "", location.pathname + (address === "?" ? "" : address));
  (window.hm ??= {{}}).opened = true;
  document.querySelector(".hm-form").inert = false;
  ({KEEP})(...values);
  const [base, agents] = values;
  if (!base && !agents?.length) window.hm.asked = window.hm.wanted;
  else {{ clearTimeout(window.hm.timer); window.hm.timer = setTimeout(window.hm.ask, 50); }}  // nobody is typing
}}"""

INSPECTING = """() => {
  const hm = (window.hm ??= {});
  hm.busy = true;
  hm.asked = hm.wanted;
  // an answer that never comes must not keep the page from asking again
  setTimeout(() => { hm.busy = false; }, 300000);
  return '<p class="hm-verdict" role="status"><strong>Checking …</strong></p>';
}"""

# An inspection answers with the form that it was about.
INSPECTED_FORM = "(asked, ...values) => [window.hm.asked, ...values]"

# Who can publish can start, except an empty form and what an inspection has refused. An answer about another form than
# the present one changes nothing: the next inspection is about that.
STARTABLE = """(checked, owner) => {
  const known = checked && checked.form === window.hm?.wanted;
  if (owner && checked && !known) return {__type__: "update"};
  const [base, agents] = window.hm?.values ?? ["not filled yet"];
  const empty = !base && !agents?.length;
  return {__type__: "update", interactive: !!owner && !empty && !checked?.refused};
}"""

# gradio makes nothing of a click on "Check again" while a check runs, so that what it was for is asked here.
INSPECTED = f"""(checked) => {{
  const hm = window.hm;
  hm.busy = false;
  if (!checked || checked.form === hm.wanted) return;
  hm.asked = null;
  clearTimeout(hm.timer);
  hm.timer = setTimeout(hm.ask, {PAUSE_MS});
}}"""

# A slow Hub takes a while to answer a start; meanwhile the page says so, and a second click does nothing.
STARTING = """() => ['<p class="hm-dim" role="status">Starting …</p>', {__type__: "update", interactive: false}]"""

# A name that nobody typed is left to the server: no inspection may have been about the form as it is now, or about any.
UNNAMED = """(suite, owner, name, ...values) =>
  [suite, owner, name === (window.hm?.proposed ?? "") ? null : name, ...values]"""

# The name that an inspection proposes replaces an earlier proposal, never what somebody typed or is typing.
CORRECT_NAME = f"""(proposed, name, address) => {{
  const hm = window.hm;
  {_VARIANTS}
  {_STORE}
  const own = name && name !== hm.proposed && name !== proposed;
  if (address) {{
    // a proposal stands for nothing that somebody chose, and other models have another
    const told = own ? address : address.replace(/&name=[^&]*/, "");
    history.replaceState(history.state, "", location.pathname + told + variants());
    store();
  }}
  const typing = document.querySelector("#target-name")?.contains(document.activeElement);
  if (!proposed || own || typing) return name;
  hm.proposed = proposed;
  return proposed;
}}"""

# A link begins with the address of this very page, which the server does not know behind a proxy.
COPIED = f"""async (text) => {{
  if (!text) return text;  // what cannot be copied is told beside it
  {_VARIANTS}
  const full = text.startsWith("?") ? location.origin + location.pathname + text + variants() : text;
  // WebKit lets nothing be copied so long after the click; then the box has it
  const done = await navigator.clipboard?.writeText(full).then(() => true, () => false);
  return {{__type__: "update", value: full, label: done ? "Copied" : "To copy"}};
}}"""
