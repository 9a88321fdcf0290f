"""The few pages that a person following a link sees: a list of repos, a repo's card, its files and its commits.

Everything shown comes from users and is escaped or, as a card, made harmless (card_html.py); no page runs a script.
"""

from html import escape
from urllib.parse import quote

from starlette.responses import HTMLResponse, Response

from localhub.access import repo_of_row
from localhub.card_html import card_html, repo_files
from localhub.protocol import Call, Json, Router

router = Router()
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; img-src 'self'; frame-ancestors 'none'; base-uri 'none';"
        " form-action 'none'"
    )
}
_STYLE = """
:root{color-scheme:light dark;--line:#cbd5e1;--soft:#f1f5f9;--link:#0f766e}
@media (prefers-color-scheme:dark){:root{--line:#475569;--soft:#1e293b;--link:#2dd4bf}}
body{font:16px/1.55 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;overflow-wrap:anywhere}
a{color:var(--link)}
main>h1{font-size:1.35rem}
pre{overflow-x:auto;background:var(--soft);padding:1rem;border-radius:.4rem;font-size:.9rem}
article{border:1px solid var(--line);border-radius:.5rem;padding:0 1.2rem 1rem}
article img{max-width:100%;height:auto;background:#fff;padding:.5rem;border-radius:.4rem;box-sizing:border-box}
@media (max-width:640px){
article p:has(>img){display:flex;overflow-x:auto;mask-image:linear-gradient(to left,transparent,black 2.5rem)}
article img{max-width:none;width:38rem;margin-right:2.5rem}
}
article table{display:block;max-width:100%;margin:1rem 0;overflow-x:auto;border-collapse:collapse;font-size:.9rem}
article th,article td{border:1px solid var(--line);padding:.3rem .6rem;text-align:left;min-width:5rem}
article th,article td{overflow-wrap:normal}
summary{cursor:pointer;padding:.15rem 0}
"""


def _page(title: str, body: str) -> Response:
    return HTMLResponse(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head>"
        f'<body><main><p><a href="/">local Hub</a></p><h1>{escape(title)}</h1>{body}</main></body></html>',
        headers=_HEADERS,
    )


@router.on("GET", "/")
def index(call: Call) -> Response:
    rows = call.store.rows("SELECT * FROM repos WHERE visibility = 'public' ORDER BY modified_at DESC LIMIT 500")
    paths = [repo_of_row(row).path for row in rows]
    links = "".join(f'<li><a href="/{quote(path)}">{escape(path)}</a></li>' for path in paths)
    return _page("Repos", f"<ul>{links}</ul>")


@router.on("GET", "/favicon.ico")
def favicon(call: Call) -> Response:
    """Every browser asks for it."""
    return Response(status_code=204)


@router.on("GET", "/avatars/{name}")
def avatar(call: Call) -> Response:
    letter = escape(call.parts["name"][:1].upper())
    hue = sum(call.parts["name"].encode()) % 360
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="64" height="64">'
        f'<rect width="64" height="64" rx="32" fill="hsl({hue} 50% 45%)"/><text x="32" y="43" font-size="30"'
        f' font-family="sans-serif" fill="#fff" text-anchor="middle">{letter}</text></svg>'
    )
    return Response(svg, media_type="image/svg+xml", headers={"Content-Security-Policy": "default-src 'none'"})


@router.on("GET", "/api/agent-harnesses")
def agent_harnesses(call: Call) -> Json:
    """The client's command line asks for it when it is imported."""
    return {"standardEnvVars": [], "harnesses": {}}


@router.on("GET", "/{P}{id}")
@router.on("GET", "/{P}{id}/tree/{rev}")
@router.on("GET", "/{P}{id}/commit/{rev}")
def repo_page(call: Call) -> Response:
    repo = call.readable()
    sha = call.commit_of(repo)
    tree = call.hub.trees.at(repo.id, sha)
    files = "".join(
        f'<li><a href="/{quote(repo.path)}/resolve/{sha}/{quote(path)}">{escape(path)}</a> {entry.size:,} bytes</li>'
        for path, entry in sorted(tree.items())
    )
    readme = tree.get("README.md")
    card = ""
    if readme and not readme.sha256 and not repo.gated:
        text = call.store.git_path(readme.oid).read_text("utf-8", errors="replace")
        card = f'<article aria-label="Model card">{card_html(text, repo_files(f"/{quote(repo.path)}", sha))}</article>'
    commits = "".join(
        f"<li><code>{commit.sha[:8]}</code> {escape(commit.title)}"
        f" <small>{escape(commit.author)}, {commit.date[:16].replace('T', ' ')} UTC</small></li>"
        for commit in call.hub.trees.history(repo.id, sha, limit=20)
    )
    return _page(repo.path, f"{card}<h2>Files</h2><ul>{files}</ul><h2>Commits</h2><ul>{commits}</ul>")


@router.on("GET", "/{P}{id}/discussions/{num}")
def discussion_page(call: Call) -> Response:
    repo = call.readable()
    row = call.store.row("SELECT * FROM discussions WHERE repo = ? AND num = ?", repo.id, call.parts["num"])
    title = f"{row['title']} (#{row['num']}, {row['status']})" if row else "No such discussion"
    return _page(title, f'<p><a href="/{quote(repo.path)}">{escape(repo.path)}</a></p>')
