"""CSS of the leaderboard and of a model's page, on top of style.py."""

BOARD_CSS = """
.hm-mark { border: 1px solid currentColor; border-radius: 99px; padding: 0 .4rem; font-size: .72rem;
  color: var(--hm-bad); white-space: nowrap; }
.row.hm-board-bar { align-items: stretch; }
.hm-board-summary { margin: 0; }
#board table, #board .virtual-body { font-family: var(--font); font-variant-numeric: tabular-nums; }
#board .virtual-body * { font-family: inherit; }
#board a { color: var(--hm-busy); font-weight: 550; }
#board a:hover { text-decoration: underline; }
/* this gradio takes `pinned_columns` and does not pin: rank and model stay in view by our own rule */
@media (min-width: 641px) {
  #board [aria-colindex="1"], #board [aria-colindex="2"] { position: sticky; z-index: 2;
    background: var(--block-background-fill); }
  #board [aria-colindex="1"] { left: 0; }
  #board [aria-colindex="2"] { left: 70px; }
}
.hm-guide { display: grid; grid-template-columns: minmax(6rem, auto) 1fr; gap: .35rem 1rem; margin: 0; }
.hm-guide dt { font-weight: 600; } .hm-guide dd { margin: 0; }
.block#compared, .block#chart { padding: 0 var(--spacing-xl) var(--spacing-xl) !important; }
.block#model, .block#model-scores, .block#model-facts { padding: var(--spacing-xl) !important; }
.hm-compare thead th { font-size: .9rem; overflow-wrap: anywhere; min-width: 8rem; }
.hm-wide th:first-child { min-width: 6.5rem; }
.hm-wide td { white-space: nowrap; }
.hm-wide thead th a { font-weight: 550; }
.hm-section h4 { margin: .6rem 0 .3rem; font-size: .95rem; font-weight: 600; }
.hm-section + .hm-section { margin-top: 1.6rem; padding-top: 1.2rem;
  border-top: 1px solid var(--border-color-primary); }
.hm-measured { list-style: none; padding: 0 !important; font-size: .85rem; }
.hm-measured li { margin: .1rem 0; }
.hm-overall { margin: .4rem 0; }
.hm-tree { list-style: none; margin: .4rem 0 0; padding-left: 0 !important; }
.hm-tree .hm-tree { margin: 0 0 0 .5rem; padding-left: .9rem !important;
  border-left: 1px solid var(--border-color-primary); }
.hm-tree li { margin: .2rem 0 !important; padding: 0 !important; overflow-wrap: anywhere; }
.hm-commit { margin: 0 .3rem; font-size: .75rem; background: none; border: 0; padding: 0;
  color: var(--body-text-color-subdued); }

/* chart */
.hm-chart-frame { margin: 0; overflow-x: auto; }
.hm-chart { width: 100%; min-width: 620px; height: auto; display: block; }
.hm-chart text { fill: var(--body-text-color-subdued); font-size: 12px; }
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
  .hm-board-bar .form > * { flex-basis: 100% !important; }
  #model-scores .hm-table td, #model-facts .hm-table td { white-space: normal; overflow-wrap: anywhere;
    text-align: right; }
  #model-scores .hm-table td::before, #model-facts .hm-table td::before { text-align: left; flex-shrink: 0; }
  #model-scores .hm-wide td { white-space: nowrap; text-align: left; }
  .hm-wide thead { display: table-header-group; }
  .hm-wide tr { display: table-row; }
  .hm-wide tbody th, .hm-wide td { display: table-cell; border-bottom: 1px solid var(--border-color-primary);
    padding: .35rem .7rem .35rem 0; }
  .hm-guide { grid-template-columns: 1fr; }
  .hm-guide dd { margin-bottom: .4rem; }
}
"""
