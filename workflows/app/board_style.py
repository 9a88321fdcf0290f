"""CSS of the leaderboard and of a model's page, on top of style.py."""

BOARD_CSS = """
.hm-mark { border: 1px solid currentColor; border-radius: 99px; padding: 0 .4rem; font-size: .72rem;
  color: var(--hm-bad); white-space: nowrap; }
.hm-mark.hm-note { color: var(--body-text-color-subdued); }
.block#leaderboard { padding: var(--spacing-xl) !important; }
.hm-board { min-height: 70vh; }
.hm-board[aria-busy] { opacity: .6; }
.hm-board a { color: var(--hm-busy); }
.hm-board label { font-size: .8rem; color: var(--body-text-color-subdued); }
.hm-board input:not([type=checkbox]), .hm-board select { display: block; width: 100%; font-size: .9rem;
  margin-top: .15rem; padding: .4rem .55rem; color: var(--body-text-color); background: var(--input-background-fill);
  border: 1px solid var(--hm-info); border-radius: var(--radius-md); }
.hm-board select { appearance: auto; height: 2.3rem; }
.hm-board input[type=search] { height: 2.3rem; }
.hm-board ::placeholder { color: var(--body-text-color-subdued); opacity: 1; }
.hm-board button { padding: .42rem .9rem; border: 1px solid var(--hm-busy); border-radius: var(--radius-md);
  color: var(--hm-busy); background: none; font-size: .9rem; font-weight: 550; cursor: pointer; }
.hm-board button:hover { background: var(--background-fill-secondary); }
.hm-board :focus-visible { outline: 2px solid var(--hm-busy); outline-offset: 2px; }
.hm-board details { margin: .5rem 0; } .hm-board summary { cursor: pointer; font-weight: 600; padding: .25rem 0; }
.hm-views { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin-bottom: .7rem; }
.hm-views a { padding: .25rem 0; text-decoration: none; border-bottom: 2px solid transparent; }
.hm-views a[aria-current] { font-weight: 650; border-color: var(--hm-busy); }
.hm-fields { display: flex; flex-wrap: wrap; gap: .6rem .9rem; align-items: end; }
.hm-fields label { flex: 1 1 10rem; max-width: 20rem; min-width: 0; }
.hm-checks { display: flex; flex-wrap: wrap; gap: .35rem 1.1rem; }
.hm-checks label { display: inline-flex; align-items: center; gap: .35rem; min-height: 1.6rem; font-size: .9rem; }
.hm-pager { display: flex; flex-wrap: wrap; gap: .5rem 1rem; align-items: center; margin: .8rem 0 1.2rem; }
.hm-pager form, .hm-pager label { display: flex; align-items: center; gap: .5rem; }
.hm-board .hm-pager input[type=number] { width: 5.5rem; margin: 0; }
.hm-unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%);
  white-space: nowrap; }
#board { position: relative; }
#board th[aria-sort] a { text-decoration: none; white-space: nowrap; display: inline-block; padding: .3rem 0; }
#board th[aria-sort] a:hover { text-decoration: underline; }
#board .hm-number { white-space: nowrap; }
#board td:not(.hm-number) { max-width: 18rem; min-width: 8rem; white-space: normal; overflow-wrap: anywhere; }
#board .hm-box { min-width: 0 !important; }
#board input[type=checkbox] { width: 1.15rem; height: 1.15rem; margin: .1rem; }
.hm-embed .hm-top, .hm-embed footer { display: none !important; }
@media (min-width: 641px) {
  #board thead th { position: sticky; top: 0; background: var(--block-background-fill); }
  #board tbody th { min-width: 12rem; }
}
.hm-guide { display: grid; grid-template-columns: minmax(6rem, auto) 1fr; gap: .35rem 1rem; margin: 0; }
.hm-guide dt { font-weight: 600; } .hm-guide dd { margin: 0; }
.block#model, .block#model-tab { padding: var(--spacing-xl) !important; }
.hm-compare thead th { font-size: .9rem; overflow-wrap: anywhere; min-width: 8rem; }
.hm-wide th:first-child { min-width: 6.5rem; }
.hm-wide td { white-space: nowrap; }
.hm-wide thead th a { font-weight: 550; }
.hm-section h3 { margin: .6rem 0 .3rem; font-size: .95rem; font-weight: 600; }
.hm-section + .hm-section { margin-top: 1.6rem; padding-top: 1.2rem;
  border-top: 1px solid var(--border-color-primary); }
.hm-measured { list-style: none; padding: 0 !important; font-size: .85rem; }
.hm-measured li { margin: .1rem 0; }
.hm-overall { margin: .4rem 0; }
.hm-tree { list-style: none; margin: .4rem 0 0; padding-left: 0 !important; }
.hm-tree .hm-tree { margin: 0 0 0 .5rem; padding-left: .9rem !important;
  border-left: 1px solid var(--border-color-primary); }
.hm-lineage strong, .hm-lineage small { margin-right: .5rem; }
.hm-lineage .hm-tree li { position: relative; }
.hm-lineage .hm-tree li::before { content: ""; position: absolute; left: -.9rem; top: .75em; width: .7rem;
  border-top: 1px solid var(--border-color-primary); }
.hm-license { font-size: .8rem; color: var(--body-text-color-subdued); }
.hm-card-text { overflow-wrap: anywhere; max-width: 56rem; }
.hm-card-text pre { overflow-x: auto; padding: .7rem .9rem; border-radius: var(--radius-md); font-size: .85rem;
  background: var(--background-fill-secondary); }
.hm-card-text :is(h1, h2, h3) { margin: 1.3rem 0 .5rem; }
.hm-card-text > h1:first-child { margin-top: .4rem; }
.hm-card-text table { display: block; width: max-content; max-width: 100%; overflow-x: auto; font-size: .85rem;
  overflow-wrap: normal; border: 0 !important; margin: .7rem 0; }
.hm-card-text :is(tr, th, td) { border-color: var(--border-color-primary) !important; }
.hm-card-text :is(th, td) { padding: .35rem .6rem; min-width: 5.5rem; }
.hm-card-text pre { margin: .5rem 0; }
.hm-card-text img { max-width: 100%; height: auto; background: white; border-radius: var(--radius-sm); }
.hm-card-text summary, #model-tab summary { cursor: pointer; padding: .25rem 0; }
.hm-layers { list-style: none; margin: 0 !important; padding: 0 !important; }
.hm-layers li { display: grid; grid-template-columns: minmax(6rem, 11rem) 1fr 8rem; gap: .7rem; align-items: end;
  margin: .4rem 0 !important; padding: 0 !important; font-size: .9rem; }
.hm-layer-bars { display: flex; gap: 1px; align-items: flex-end; height: 2.6rem;
  border-bottom: 1px solid var(--border-color-primary); }
.hm-layer-bars i { flex: 1 1 0; min-width: 0; max-width: 3rem; background: var(--hm-private); }
@media (max-width: 640px) { .hm-layers li { grid-template-columns: 1fr auto; }
  .hm-layer-bars { grid-column: 1 / -1; grid-row: 2; } }
.hm-tree li { margin: .2rem 0 !important; padding: 0 !important; overflow-wrap: anywhere; }
.hm-commit { margin: 0 .3rem; font-size: .75rem; background: none; border: 0; padding: 0;
  color: var(--body-text-color-subdued); }

/* chart */
.hm-chart-frame { margin: 0; }
.hm-chart { width: 100%; max-width: 860px; height: auto; display: block; }
.hm-chart text { fill: var(--body-text-color-subdued); font-size: 10px; }
@media (max-width: 900px) { .hm-chart text { font-size: 14px; } }
@media (max-width: 640px) { /* drawn 640 wide and shown half as wide; the heading says what goes up */
  .hm-chart text { font-size: 28px; } .hm-chart .hm-upright { display: none; } .hm-point circle { r: 9px; }
}
.hm-chart .hm-middle { text-anchor: middle; }
.hm-chart .hm-end { text-anchor: end; dominant-baseline: middle; }
.hm-line { stroke: var(--border-color-primary); stroke-width: 1; }
.hm-whisker { stroke: var(--hue); stroke-width: 1.5; opacity: .55; }
.hm-point circle { fill: var(--hue); stroke: var(--block-background-fill); stroke-width: 1.5; }
.hm-point:hover circle, .hm-point:focus circle { stroke: var(--body-text-color); }
.hm-legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; list-style: none; margin: .4rem 0 0;
  padding: 0 !important; font-size: .85rem; }
.hm-legend li { margin: 0; }
.hm-legend i { display: inline-block; width: .7rem; height: .7rem; border-radius: 99px; margin-right: .35rem;
  background: var(--hue); }
.hm-hue-0 { --hue: #0f766e; } .hm-hue-1 { --hue: #2563eb; } .hm-hue-2 { --hue: #c2410c; }
.hm-hue-3 { --hue: #7c3aed; } .hm-hue-4 { --hue: #a16207; } .hm-hue-5 { --hue: #be185d; }
.hm-hue-6 { --hue: #0e7490; } .hm-hue-7 { --hue: #64748b; }
.dark .hm-hue-0 { --hue: #2dd4bf; } .dark .hm-hue-1 { --hue: #60a5fa; } .dark .hm-hue-2 { --hue: #fb923c; }
.dark .hm-hue-3 { --hue: #a78bfa; } .dark .hm-hue-4 { --hue: #facc15; } .dark .hm-hue-5 { --hue: #f472b6; }
.dark .hm-hue-6 { --hue: #22d3ee; } .dark .hm-hue-7 { --hue: #94a3b8; }

@media (max-width: 640px) {
  #board tr { display: grid; grid-template-columns: auto 1fr; gap: 0 .8rem; }
  #board tr > * { grid-column: 1 / -1; }
  #board .hm-box { grid-column: 1; grid-row: 1; } #board .hm-box::before { content: none; }
  #board tbody th { grid-column: 2; grid-row: 1; justify-content: start; font-size: 1rem; }
  #board td:not(.hm-box) { text-align: right; max-width: none; min-width: 0; }
  #board td::before { text-align: left; flex: none; max-width: 50%; white-space: normal; }
  .hm-fields label { flex-basis: 45%; }
  #model-tab .hm-table td { white-space: normal; overflow-wrap: anywhere;
    text-align: right; }
  #model-tab .hm-table td::before { text-align: left; flex-shrink: 0; }
  #model-tab .hm-wide td { white-space: nowrap; text-align: left; }
  .hm-wide thead { display: table-header-group; }
  .hm-wide tr { display: table-row; }
  .hm-wide tbody th, .hm-wide td { display: table-cell; border-bottom: 1px solid var(--border-color-primary);
    padding: .35rem .7rem .35rem 0; }
  .hm-guide { grid-template-columns: 1fr; }
  .hm-guide dd { margin-bottom: .4rem; }
}
"""
