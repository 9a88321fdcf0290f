"""The leaderboard's parts: intervals, values, lineage, and the files that it is read from and written to.

`hubmerge.board.leaderboard.build_board` puts them together.
"""
