"""Theme and CSS of the pages: system fonts, nothing fetched from elsewhere, light and dark, phone first."""

from __future__ import annotations

from typing import Any

import gradio as gr

TITLE = "hubmerge"


def theme() -> Any:
    """gradio's default theme in the project's colours; fonts are the system's own."""
    return gr.themes.Default(
        primary_hue=gr.themes.colors.teal,
        secondary_hue=gr.themes.colors.teal,
        neutral_hue=gr.themes.colors.slate,
        radius_size=gr.themes.sizes.radius_md,
        font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
        font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"],
    ).set(
        body_background_fill="*neutral_50",
        body_background_fill_dark="*neutral_950",
        # gradio's own are too pale to be read on white: 2.6 : 1 and 3.7 : 1
        body_text_color_subdued="*neutral_500",
        link_text_color="*secondary_700",
        # 3 : 1 against the card, so that what is not chosen is seen
        checkbox_border_color="*neutral_500",
        checkbox_border_color_dark="*neutral_400",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover_dark="*primary_600",
        button_primary_text_color="white",
        # gradio's own red is too pale on its pink
        button_cancel_background_fill="#fee2e2",
        button_cancel_background_fill_hover="#fecaca",
        button_cancel_background_fill_dark="#7f1d1d",
        button_cancel_background_fill_hover_dark="#991b1b",
        button_cancel_text_color="#991b1b",
        button_cancel_text_color_hover="#991b1b",
        button_cancel_text_color_dark="#fecaca",
        button_cancel_text_color_hover_dark="#fecaca",
    )


BAR_CSS = """
.hm-bar-links { display: flex; flex-wrap: wrap; align-items: baseline; gap: .3rem 1.4rem; }
.hm-bar-links a { color: inherit !important; text-decoration: none !important; white-space: nowrap; }
.hm-bar-links .hm-brand { font-weight: 700; font-size: 1.35rem; letter-spacing: -.015em; }
.hm-nav { display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; }
.hm-nav a { padding: .3rem 0; border-bottom: 2px solid transparent; }
.hm-nav a:hover { border-color: currentColor; }
.hm-nav a[aria-current] { font-weight: 600; border-color: var(--hm-busy); }
"""

# in the page before gradio builds it: the frame, which would move everything if it came later. gradio's own bar does
# not say where one is; its sign of loading stands in the middle of a page whose height is not known yet.
FIRST_CSS = (
    """
.nav-holder { display: none; }
.gradio-container { max-width: 1200px !important; width: 100% !important; margin: 0 auto !important; }
/* gradio hides what overflows, which makes a frame of its own for what shall stay in sight, so that nothing did */
.gradio-container { overflow: clip !important; }
gradio-app .wrap.full:not(.block *) { position: fixed !important; inset: 0 !important; }
.gradio-container .row.hm-top { align-items: center; justify-content: space-between; flex-wrap: wrap;
  margin-bottom: .4rem; position: relative; min-height: 3.5rem; }
.gradio-container .hm-top > .hm-bar-block { flex: 1 1 20rem !important; min-width: 0 !important; width: auto; }
.gradio-container .hm-top > button { flex: 0 1 auto; min-width: 0 !important; padding: .4rem .9rem;
  white-space: nowrap; }
@media (max-width: 640px) {
  .gradio-container .hm-bar-links .hm-brand { flex-basis: 100%; text-align: start; }
  .gradio-container .row.hm-top { min-height: 6.25rem; }  /* its links come after it */
  .gradio-container .hm-top > button { position: absolute; top: .5rem; right: .5rem; max-width: 60%; }
}
"""
    + BAR_CSS
)

# of the few pages that are served without gradio
PLAIN_CSS = (
    """
:root { color-scheme: light dark; --hm-busy: #0f766e; font-family: system-ui, sans-serif; line-height: 1.5;
  color: #1e293b; background: #f8fafc; }
body { max-width: 1150px; margin: 0 auto; padding: 1rem; }
main { max-width: 40rem; padding: 3rem 0; }
h1 { font-size: 1.5rem; line-height: 1.2; }
main a { color: #0f766e; }
@media (prefers-color-scheme: dark) {
  :root { --hm-busy: #2dd4bf; color: #f1f5f9; background: #020617; } main a { color: #2dd4bf; }
}
"""
    + BAR_CSS
)

CSS = """
:root { --hm-good: #15803d; --hm-warn: #b45309; --hm-bad: #b91c1c; --hm-info: #475569; --hm-busy: #0f766e;
  --hm-private: #0f766e; --hm-overlap: #3b82f6; --hm-conflict: #d97706; --hm-unchanged: #cbd5e1;
  --hm-score-merge: #4338ca; --hm-score-agent: #8b5cf6; --hm-score-base: #64748b; }
.dark { --hm-good: #4ade80; --hm-warn: #fbbf24; --hm-bad: #f87171; --hm-info: #94a3b8; --hm-busy: #2dd4bf;
  --hm-private: #2dd4bf; --hm-overlap: #60a5fa; --hm-conflict: #fbbf24; --hm-unchanged: #475569;
  --hm-score-merge: #a5b4fc; --hm-score-agent: #8b5cf6; --hm-score-base: #94a3b8; }

/* frame */
.gradio-container main, .gradio-container .contain { width: 100%; }
/* what comes later moves nothing that is in sight: the footer begins below it */
.gradio-container main { min-height: 100vh; }
/* gradio makes the bar after the rest; until then its room is kept free */
main.contain > .column > :first-child:not(.hm-top) { margin-top: 4.9rem; }
@media (max-width: 640px) { main.contain > .column > :first-child:not(.hm-top) { margin-top: 7.7rem; } }
/* the form comes once the list above it stands */
main:has(#watchers .hm-loading) .hm-wizard { visibility: hidden; }
/* in sight wherever the button is that it answers */
main:has(#watchers) .block#said { position: sticky; bottom: .6rem; z-index: 10; }
.hm-wizard { margin-top: 1.5rem; } .hm-wizard-title h2 { font-size: 1.2rem; margin: 0; }
/* and of the form above a comparison */
main:has(#diff):not(:has(.hm-two)) :is(#diff, .hm-actions) { visibility: hidden; }
.block:has(> .html-container > .prose:empty) { display: none; }
footer .divider { display: none; } /* behind the only link */
.hm-header h1, .hm-title h1 { font-size: 1.5rem; line-height: 1.2; margin: 0; letter-spacing: -.015em; }
.hm-header p { margin: .3rem 0 0; color: var(--body-text-color-subdued); }
.hm-card { background: var(--block-background-fill); border: 1px solid var(--border-color-primary);
  border-radius: var(--radius-lg); }
.hm-card .hm-card { border: 0; background: none; }
.hm-card h3, .hm-section h2 { font-size: 1rem; margin: 0; font-weight: 650; }
.hm-unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
.block.hm-card-title { padding: .75rem 0 .3rem !important; }
.block.hm-card-title .html-container, #about-method .html-container { padding: 0 var(--block-label-margin) 0 .75rem; }
.block.hm-card-title, #about-method { background: var(--block-background-fill); border-radius: 0; }
.block#outcome, .block#job, .block#jobs, .block#statistics { padding: var(--spacing-xl) !important; }
@media (max-width: 640px) {
  .block#job { min-height: 60vh; }
  .hm-two { min-height: 15rem; }
  .hm-asks { min-height: 13.2rem; }
}
.hm-dim { color: var(--body-text-color-subdued); margin: .35rem 0; }
.hm-empty { margin: 0; }
@media (min-width: 900px) { .hm-side { position: sticky; top: 1rem; align-self: flex-start; } }

.prose[id] a { margin: 0; padding: 0; }

/* home */
.hm-home { max-width: 46rem; padding: 1.2rem 0 .4rem; }
.hm-home h1 { font-size: 2.1rem; line-height: 1.15; letter-spacing: -.02em; margin: 0 0 .8rem; text-wrap: balance; }
.hm-home p { font-size: 1.05rem; }
.hm-ways { display: flex; flex-wrap: wrap; gap: .7rem; margin: 1.1rem 0; }
.prose[id] a.hm-button { padding: .6rem 1.1rem; border-radius: var(--radius-md); font-weight: 600;
  text-decoration: none; border: 1px solid var(--hm-busy); color: var(--body-text-color); }
.prose[id] a.hm-button.hm-first { background: #0f766e; border-color: #0f766e; color: white; }
.hm-measured { margin: 1rem 0 0; }
.hm-measured figcaption { font-size: .85rem; color: var(--body-text-color-subdued); margin-top: .7rem;
  max-width: 46rem; }
.hm-skills { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: 1rem; }
.hm-skills section, .hm-latest { background: var(--block-background-fill); padding: 1rem 1.2rem;
  border: 1px solid var(--border-color-primary); border-radius: var(--radius-lg); }
.hm-skills h2, .hm-latest h2 { font-size: 1.05rem; margin: 0 0 .6rem; font-weight: 650; }
.hm-skills ul, .hm-latest ul { list-style: none; margin: 0; padding: 0 !important; }
.prose .hm-skills li { display: flex; flex-wrap: wrap; justify-content: space-between; margin: 0 0 .6rem; }
.hm-gain { position: relative; flex: 1 0 100%; height: .8rem; border-radius: 3px; overflow: hidden;
  background: var(--background-fill-secondary); }
.hm-gain span { display: block; height: 100%; }
.hm-gain i { position: absolute; top: 0; bottom: 0; width: 2px; background: var(--body-text-color); }
/* scores have colours of their own: those of shares say who changed a weight */
.hm-of-agent { background: var(--hm-score-agent); } .hm-of-average { background: var(--hm-score-base); }
.hm-of-merged { background: var(--hm-score-merge); }
.hm-latest li { display: flex; flex-wrap: wrap; justify-content: space-between; gap: .2rem 1rem; margin: 0;
  padding: .35rem 0; border-bottom: 1px solid var(--border-color-primary); }
.hm-latest li a, .hm-latest li span { overflow-wrap: anywhere; margin: 0; }

/* docs */
.hm-contents p { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; margin: .8rem 0 0; }
.hm-docs h2, #programs h2 { font-size: 1.2rem; margin: 0 0 .5rem; }
.hm-docs details { border-top: 1px solid var(--border-color-primary); padding: .5rem 0; }
.hm-docs summary { cursor: pointer; }
.hm-docs details > :not(summary) { margin-left: 1rem; }
.hm-docs pre, .hm-docs pre code { white-space: pre-wrap; overflow-wrap: anywhere; overflow: visible; }
.hm-docs td, .hm-docs th { overflow-wrap: anywhere; vertical-align: top; text-align: left;
  border-color: var(--border-color-primary) !important; }
@media (max-width: 640px) { /* three columns have no room */
  .hm-docs :is(table, tbody, tr, td) { display: block; width: 100%; border: 0 !important; }
  .hm-docs thead { display: none; }
  .hm-docs td { padding: .1rem 0 !important; }
  .hm-docs tr { padding: .5rem 0; border-bottom: 1px solid var(--border-color-primary) !important; }
  .hm-docs td:nth-child(3):not(:empty)::before { content: "Needs a sign-in: "; }
}

.hm-code [data-testid="block-info"] { padding: .25rem .6rem; }
.hm-code textarea { font-family: var(--font-mono); font-size: .85rem; }

/* messages */
.hm-notice { border-left: 4px solid var(--hm-info); background: var(--background-fill-secondary);
  padding: .7rem .9rem; border-radius: 0 var(--radius-md) var(--radius-md) 0; margin: 0 0 .9rem; }
.hm-notice:last-child { margin-bottom: 0; }
.hm-notice p { margin: .25rem 0 0; }
.hm-notice ul { margin: .35rem 0 0; padding-left: 1.1rem; }
.hm-notice.hm-good { border-color: var(--hm-good); }
.hm-notice.hm-warn { border-color: var(--hm-warn); }
.hm-notice.hm-bad { border-color: var(--hm-bad); }
.hm-problems { list-style: none; padding: 0 !important; }
.hm-problems > li { padding: .6rem 0; border-top: 1px solid var(--border-color-primary); overflow-wrap: anywhere; }
.hm-problems > li:first-child { border-top: 0; }
.hm-code { font-size: .75rem; color: var(--body-text-color-subdued); background: transparent; padding: 0; }
.hm-problems .hm-code { display: block; margin-top: .25rem; }
.hm-what { font-weight: 600; display: inline-block; }
.hm-what::first-letter { text-transform: uppercase; }
.hm-problems dl { margin: .3rem 0 0; }
.hm-problems dl div { display: grid; grid-template-columns: 5.5rem 1fr; gap: .5rem; }
.hm-problems dt, .hm-facts dt { color: var(--body-text-color-subdued); font-weight: 400; }
.hm-problems dd, .hm-facts dd { margin: 0; }
.hm-next { font-weight: 500; }

/* facts and tables */
.hm-facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); gap: .8rem 1rem;
  margin: 0 0 1rem; }
.hm-facts dt { font-size: .8rem; }
.hm-facts dd { font-weight: 550; overflow-wrap: anywhere; }
.hm-table { overflow-x: auto; margin: 0 0 1rem; }
.hm-table table { width: 100%; border-collapse: collapse; font-size: .9rem; margin: 0; border: 0 !important; }
.hm-table tr { border: 0 !important; }
.hm-table th, .hm-table td { text-align: left; padding: .45rem .9rem .45rem 0; border: 0; font-weight: 400;
  border-bottom: 1px solid var(--border-color-primary); background: none; vertical-align: top; }
.hm-table thead th { color: var(--body-text-color-subdued); font-size: .8rem; }
.hm-table tbody th { font-weight: 550; overflow-wrap: anywhere; }
.hm-table th a { text-align: left; }
.hm-table td { white-space: nowrap; }
.hm-sha { display: block; font-size: .75rem; background: none; padding: 0; border: 0;
  color: var(--body-text-color-subdued); }
.hm-table tbody tr:last-child > * { border-bottom: 0; }
.hm-table td { font-variant-numeric: tabular-nums; }

/* method */
.hm-method { padding: .2rem .75rem .6rem 0; }
.hm-method p { margin: 0 0 .5rem; }
.hm-formula { font-family: var(--font-mono); font-size: .9rem; background: var(--background-fill-secondary);
  padding: .55rem .8rem; border-radius: var(--radius-md); overflow-x: auto; }
.hm-papers { list-style: none; padding: 0 !important; margin: .5rem 0 0 !important; font-size: .9rem; }
.hm-papers li { padding: 0 !important; margin: 0 !important; }

/* job */
.hm-title { display: flex; flex-wrap: wrap; align-items: center; gap: .6rem .9rem; margin-bottom: 1rem; }
.hm-title h1 { overflow-wrap: anywhere; }
.hm-badge { font-size: .8rem; font-weight: 600; padding: .12rem .6rem; border-radius: 99px; white-space: nowrap;
  border: 1px solid currentColor; color: var(--hm-info); }
.hm-badge.hm-busy { color: var(--hm-busy); } .hm-badge.hm-good { color: var(--hm-good); }
.hm-badge.hm-bad { color: var(--hm-bad); } .hm-badge.hm-warn { color: var(--hm-warn); }
.hm-stages { list-style: none; display: grid; grid-auto-flow: column; grid-auto-columns: 1fr; gap: .35rem;
  margin: 0 0 1.2rem; padding: 0 !important; font-size: .85rem; }
.hm-stages li { border-top: 4px solid var(--border-color-primary); padding-top: .35rem; margin: 0;
  color: var(--body-text-color-subdued); }
.hm-stages .hm-passed { border-color: var(--hm-busy); color: var(--body-text-color); }
.hm-stages .hm-current { border-color: var(--hm-busy); color: var(--body-text-color); font-weight: 650; }
.hm-stages .hm-current { border-image: repeating-linear-gradient(90deg, var(--hm-busy) 0 8px, transparent 8px 12px) 4; }
.hm-stages .hm-broken { border-color: var(--hm-bad); color: var(--hm-bad); font-weight: 650; }
.hm-stages .hm-stopped { border-color: var(--hm-info); font-weight: 650; }
.hm-amount { display: flex; flex-wrap: wrap; gap: .2rem .9rem; align-items: baseline; margin-bottom: .35rem;
  font-variant-numeric: tabular-nums; }
.hm-bar { height: .6rem; border-radius: 99px; background: var(--border-color-primary); overflow: hidden; }
.hm-fill { height: 100%; background: var(--hm-busy); transition: width .8s linear; }
.hm-moving { width: 30%; animation: hm-move 1.6s ease-in-out infinite alternate; }
@keyframes hm-move { to { margin-left: 70%; } }
@media (prefers-reduced-motion: reduce) { .hm-moving { animation: none; } .hm-fill { transition: none; } }
.hm-result { font-size: 1.05rem; font-weight: 600; }
.prose .hm-next-steps { margin: .5rem 0 .8rem; }
.hm-left { margin: .5rem 0 0; font-weight: 550; }
.hm-doing { margin: 0 0 .5rem; font-weight: 550; }
.hm-scorings h2 { margin: .8rem 0 .2rem; font-size: .95rem; font-weight: 600; }
.hm-small { font-size: .8rem; margin-left: .4rem; }
.prose .hm-verdict { font-size: 1.15rem; font-weight: 650; margin: 0 0 .8rem; }
.hm-ways-on { display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; }
.hm-picture { margin: .4rem 0 1rem; display: grid; gap: .2rem 2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr)); }
.hm-picture figcaption { grid-column: 1 / -1; }
.hm-dots { list-style: none; margin: 0 !important; padding: 0 !important; }
.hm-dots li { display: grid; grid-template-columns: minmax(6rem, 11rem) 1fr 6.5rem; gap: .7rem; align-items: center;
  margin: .25rem 0 !important; padding: 0 !important; font-size: .9rem; --dot: var(--hm-score-base); }
.hm-dots .hm-dots-merge { --dot: var(--hm-score-merge); font-weight: 600; }
.hm-dots .hm-dots-agent { --dot: var(--hm-score-agent); }
.hm-dots-name { overflow-wrap: anywhere; }
@media (max-width: 640px) {
  .hm-dots li { grid-template-columns: 1fr 6.5rem; }
  .hm-dots-name { grid-column: 1 / -1; }
}
.hm-dots-value { font-variant-numeric: tabular-nums; white-space: nowrap; }
.hm-track { position: relative; height: .9rem; border-radius: 99px; background: var(--background-fill-secondary); }
.hm-range { position: absolute; top: .3rem; height: .3rem; border-radius: 99px; background: var(--dot); opacity: .4; }
.hm-dot { position: absolute; top: .12rem; width: .66rem; height: .66rem; margin-left: -.33rem; border-radius: 99px;
  background: var(--dot); }
.hm-snippet { overflow-x: auto; padding: .8rem; border-radius: var(--radius-md); font-size: .85rem;
  background: var(--background-fill-secondary); }
.hm-tabs { display: flex; flex-wrap: wrap; gap: 0 1.2rem; margin: 0 0 1rem;
  border-bottom: 1px solid var(--border-color-primary); }
.hm-tabs .hm-tab { white-space: nowrap; padding: .3rem 0 .5rem !important; color: var(--body-text-color-subdued);
  text-decoration: none; }
@media (max-width: 640px) { .hm-tabs { gap: 0 .55rem; font-size: .8rem; } }
.hm-tabs .hm-tab[aria-current] { color: var(--body-text-color); font-weight: 600;
  box-shadow: inset 0 -2px var(--hm-busy); }

/* comparison */
.hm-figure { overflow-x: auto; margin: .6rem 0 1.2rem; background: white; border-radius: var(--radius-md); }
.hm-figure img { width: 100%; min-width: 620px; max-width: 900px; display: block; margin: 0 auto; }
.hm-pairs { margin: 0 0 1rem; }
.hm-pairs div { display: grid; grid-template-columns: minmax(10rem, 20rem) 1fr; gap: 0 1rem; padding: .4rem 0;
  border-bottom: 1px solid var(--border-color-primary); }
.hm-pairs dt { font-weight: 400; color: var(--body-text-color-subdued); }
.hm-pairs dd { margin: 0; font-weight: 550; font-variant-numeric: tabular-nums; }
details.hm-section { margin: 0 0 1rem; }
details.hm-section > summary { cursor: pointer; font-weight: 650; padding: .3rem 0; }
.block#diff, .block#diff-models { padding: var(--spacing-xl) !important; }
#diff .hm-section { margin-top: 1.4rem; } #diff-models .hm-table { margin: 0; }

/* statistics */
.hm-shares { margin: .6rem 0 1.2rem; }
.hm-stack { display: flex; height: 1rem; border-radius: var(--radius-sm); overflow: hidden; }
.hm-part.hm-private, .hm-shares i.hm-private { background: var(--hm-private); }
.hm-part.hm-overlap, .hm-shares i.hm-overlap { background: var(--hm-overlap); }
.hm-part.hm-conflict, .hm-shares i.hm-conflict { background: var(--hm-conflict); }
.hm-part.hm-unchanged, .hm-shares i.hm-unchanged { background: var(--hm-unchanged); }
.hm-shares figcaption { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin-top: .5rem; font-size: .85rem; }
.hm-shares ul { display: flex; flex-wrap: wrap; gap: .2rem 1rem; list-style: none; margin: 0; padding: 0 !important; }
.hm-shares li { margin: 0; }
.hm-shares i { display: inline-block; width: .7rem; height: .7rem; border-radius: 2px; margin-right: .35rem; }
.hm-cell { display: inline-flex; align-items: center; gap: .5rem; }
.hm-meter { display: inline-block; width: 4.5rem; height: .45rem; border-radius: 99px; overflow: hidden;
  background: var(--border-color-primary); }
.hm-meter-fill { display: block; height: 100%; background: var(--hm-private); }

@media (max-width: 640px) {
  .hm-facts { grid-template-columns: 1fr 1fr; }
  .hm-pairs div { grid-template-columns: 1fr; }
  .hm-table thead { display: none; }
  .hm-table tr { display: block; padding: .5rem 0; border-bottom: 1px solid var(--border-color-primary) !important; }
  .hm-table tbody th, .hm-table td { display: flex; justify-content: space-between; gap: 1rem; border: 0;
    padding: .15rem 0; }
  .hm-table td:empty { display: none; }
  .hm-table td::before { content: attr(data-label); color: var(--body-text-color-subdued); }
  .hm-header h1, .hm-title h1 { font-size: 1.3rem; }
  .hm-stages { grid-auto-flow: row; grid-auto-columns: auto; gap: .1rem; }
  .hm-stages li { border-top: 0; border-left: 4px solid var(--border-color-primary); padding: .15rem 0 .15rem .6rem; }
  .hm-stages .hm-current { border-image: none; }
}
"""
