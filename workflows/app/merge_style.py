"""The merge page's CSS: three steps, the inspection beside them, and a bar at the bottom of a phone."""

MERGE_CSS = """
/* the parts of the form come one after the other; nothing is shown that would still move */
.hm-merge { animation: hm-there 0s .9s both; }
@keyframes hm-there { from { visibility: hidden; } to { visibility: visible; } }
.hm-card h2 { font-size: 1.05rem; margin: 0; font-weight: 650; }
.hm-merge .hm-side { gap: .75rem; }
.hm-merge .hm-side > * { flex-shrink: 0; } /* else what is long lies over what follows it */
.row.hm-bar-start { align-items: center; flex-wrap: nowrap; gap: .75rem; min-height: 3.9rem; }
.hm-bar-start > #verdict { flex: 1 1 auto !important; min-width: 0 !important; border: 0; }
.hm-bar-start > button { flex: 0 0 auto; min-width: 8rem; }
.hm-verdict { margin: 0; line-height: 1.35; }
.hm-verdict .hm-dim { font-size: .85rem; }
/* also while it is empty, so that nothing below it moves */
.hm-merge .block#hint { display: block; min-height: 3.6rem; }
.hm-verdict strong { display: block; }
.hm-verdict-good { color: var(--hm-good); }
.hm-verdict-bad { color: var(--hm-bad); }
/* a long name of a setting ends before the arrow */
#sweep input[role=combobox] { text-overflow: ellipsis; padding-right: 1.8rem; }
.row.hm-copy { gap: .4rem; flex-wrap: wrap; }
.hm-copy > button { flex: 1 1 auto; min-width: 6.5rem !important; font-weight: 500; white-space: nowrap; }

/* the models that are chosen */
.hm-chosen { list-style: none; margin: 0 0 1rem; padding: 0 !important; }
.hm-chosen li { display: flex; flex-wrap: wrap; align-items: baseline; gap: .25rem .5rem; margin: 0; padding: .45rem 0;
  border-bottom: 1px solid var(--border-color-primary); overflow-wrap: anywhere; }
.hm-chosen .hm-role { flex: 0 0 3.2rem; color: var(--body-text-color-subdued); font-size: .8rem; }
.prose .hm-chosen a, .hm-chosen .hm-id { font-weight: 550; flex: 1 1 60%; text-align: left; }
.hm-chip { font-size: .78rem; padding: .05rem .5rem; border-radius: 99px; border: 1px solid var(--border-color-primary);
  color: var(--body-text-color); }
.hm-chosen .hm-ask, .prose .hm-chosen a.hm-ask { flex: 0 0 auto; font-weight: 400; font-size: .78rem; }
.hm-chip-good { color: var(--hm-good); border-color: currentColor; }
.hm-chip-warn { color: var(--hm-warn); border-color: currentColor; }
.hm-chip-bad { color: var(--hm-bad); border-color: currentColor; }

/* room that fills later */
.block#suggested { min-height: 6.2rem; }
/* the room that two agents and the suggestions take on a phone, before they are there */
@media (max-width: 640px) { .block#suggested { min-height: 9rem; } #agents .wrap-inner { min-height: 5.4rem; } }
.block#outcome { min-height: 34rem; }

/* the methods as cards */
#pick .wrap { display: grid; grid-template-columns: repeat(auto-fit, minmax(14rem, 1fr)); gap: .5rem; }
#pick label { align-items: flex-start; height: 100%; padding: .6rem .75rem; }
#pick label > span { white-space: pre-line; line-height: 1.4; display: block; font-weight: 400; }
#pick label > span::first-line { font-weight: 650; }
#pick label > input { margin-top: .2rem; flex: 0 0 auto; }
#settings .hm-method { padding-top: .4rem; }

@media (min-width: 900px) and (max-width: 1200px) { .row.hm-bar-start { min-height: 6.4rem; } }
@media (min-width: 900px) {
  .hm-merge .hm-side { position: sticky; top: .75rem; align-self: flex-start; max-height: calc(100vh - 1.5rem);
    overflow-y: auto; flex-wrap: nowrap; }
}
@media (max-width: 899px) {
  .hm-merge .hm-form { min-height: 110vh; }
  .hm-merge { padding-bottom: 5rem; }
  .row.hm-bar-start { position: fixed; left: 0; right: 0; bottom: 0; z-index: 20; padding: .6rem .9rem;
    min-height: 4.6rem; background: var(--block-background-fill); border-top: 1px solid var(--border-color-primary); }
}
"""
