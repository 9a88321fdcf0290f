"""The merge page's own script: it keeps the form in the browser and asks for an inspection a moment after a change.

All of it stands in gradio's `js=`; what one function leaves for the next is in `window.hm`. The values are those of
`MergeForm.kept`: the recipe's, then owner, name, visibility and license.
"""

from __future__ import annotations

PAUSE_MS = 700  # from the last change to the inspection

GO = """(id) => { if (id) window.location.assign("job?id=" + encodeURIComponent(id)); }"""

# A browser may refuse storage inside a frame; the form then works without memory.
KEPT = """() => { try {
  const values = JSON.parse(localStorage.getItem("hubmerge-form"));
  const [now, kept] = [location.search, localStorage.getItem("hubmerge-address") || ""].map(decodeURIComponent);
  // signing in brings back only the first part of an address
  return [{values, same: now === kept || (now !== "" && kept.startsWith(now + "&"))}];
} catch { return [null]; } }"""

_STORE = """try { localStorage.setItem("hubmerge-form", JSON.stringify(values)); } catch { }"""

# Owner, name and visibility change nothing of what is inspected. A second inspection waits until the first has ended.
KEEP = f"""(...values) => {{
  {_STORE}
  const hm = (window.hm ??= {{}});
  hm.wanted = JSON.stringify([values.slice(0, -4), values.at(-1)]);
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

# Nothing is asked for a form without a model, nor before it is filled.
OPENED = f"""(...values) => {{
  ({KEEP})(...values);
  window.hm.opened = true;
  try {{ localStorage.setItem("hubmerge-address", location.search); }} catch {{ }}
  const [base, agents] = values;
  if (!base && !agents?.length) window.hm.asked = window.hm.wanted;
}}"""

INSPECTING = """() => {
  const hm = (window.hm ??= {});
  hm.busy = true;
  hm.asked = hm.wanted;
  // an answer that never comes must not keep the page from asking again
  setTimeout(() => { hm.busy = false; }, 300000);
  return '<p class="hm-verdict" role="status"><strong>Checking …</strong></p>';
}"""

INSPECTED = """() => { window.hm.busy = false; }"""

# The name that an inspection proposes replaces an earlier proposal, never what somebody typed meanwhile.
CORRECT_NAME = """(proposed, name, address) => {
  const hm = window.hm;
  if (address) {
    history.replaceState(history.state, "", location.pathname + "?" + address);
    try { localStorage.setItem("hubmerge-address", location.search); } catch { }
  }
  if (!proposed || (name && name !== hm.proposed)) return name;
  hm.proposed = proposed;
  return proposed;
}"""

# A link begins with the address of this very page, which the server does not know behind a proxy.
COPIED = """(text) => {
  const full = text.startsWith("?") ? location.origin + location.pathname + text : text;
  navigator.clipboard?.writeText(full).catch(() => {});  // the box has it, too
  return full;
}"""
