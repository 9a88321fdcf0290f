"""The leaderboard, `/leaderboard?suite=NAME&q=…`: one page of the table at a time, a comparison and a chart.

The server searches, filters, sorts and cuts (board_query.py); the page fetches what its address asks for as HTML from
`/board/page` (board_routes.py). A link or a form of the board changes the address and the content, and keeps the place
and the focus; the whole page is loaded only where that fails.
"""

from __future__ import annotations

import gradio as gr

from workflows.app.format import el, evaluate_href, join, link
from workflows.app.panels import header

_JS = """
const root = element.querySelector('.hm-board') || element;
const status = 'The leaderboard could not be loaded. Load the page again in a moment.';
if (new URLSearchParams(location.search).get('embed') === '1') document.body.classList.add('hm-embed');
let asked = 0;
const show = async (search, keep) => {
  const mine = ++asked, held = keep && document.activeElement ? document.activeElement.id : '';
  const opened = keep ? [...root.querySelectorAll('details[id][open]')].map((d) => d.id) : [];
  root.setAttribute('aria-busy', 'true');
  let html;
  try {
    const answer = await fetch('board/page' + search);
    html = await answer.text();
  } catch { if (mine === asked) root.textContent = status; return; }
  finally { if (mine === asked) root.removeAttribute('aria-busy'); }
  if (mine !== asked) return;
  root.innerHTML = html;
  for (const id of opened) document.getElementById(id)?.setAttribute('open', '');
  if (held) document.getElementById(held)?.focus();
};
const go = (url) => { history.pushState(null, '', url); show(url.search, true); };
const is_board = (url) => url.origin === location.origin && url.pathname === location.pathname;
root.addEventListener('click', (event) => {
  const link = event.target.closest('a[href]');
  if (!link || event.metaKey || event.ctrlKey || event.shiftKey || link.target) return;
  const url = new URL(link.href);
  if (is_board(url)) { event.preventDefault(); go(url); }
});
root.addEventListener('submit', (event) => {
  event.preventDefault();
  const url = new URL(event.target.action), values = new URLSearchParams();
  for (const [name, value] of new FormData(event.target)) if (value) values.append(name, value);
  const same = [...event.target.querySelectorAll('[name=cols]')].every((box) => box.checked === box.defaultChecked);
  if (same && !new URLSearchParams(location.search).has('cols')) values.delete('cols'); // the view's own
  url.search = values;
  go(url);
});
root.addEventListener('change', (event) => {
  if (event.target.matches('select')) event.target.form.requestSubmit();
});
addEventListener('popstate', () => show(location.search, false));
show(location.search, false);
"""


def leaderboard_page() -> None:
    """Build the page in the current Blocks context."""
    ask = el("p", link(evaluate_href(), "Submit a model"), ", or see what is being measured.")
    gr.HTML(join(header("Leaderboard", "What merges keep of their parents, measured."), ask), js_on_load=None)
    loading = el("div", el("p", "Loading …", cls="hm-dim"), cls="hm-board")
    gr.HTML(loading, js_on_load=_JS, elem_id="leaderboard", elem_classes="hm-card", padding=True)
