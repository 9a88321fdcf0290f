"""The journal: whole batches survive any kill."""

import pytest

from hubmerge.evaluation.journal import AnswerJournal, answer_key


def test_a_file_cut_at_any_byte_holds_whole_batches_of_any_text_only_and_goes_on(tmp_path):
    whole = AnswerJournal(tmp_path / "whole")
    whole.add(["a", "b"], [["1"], ["zwei\u2028\ud800"]])
    first = (tmp_path / "whole").stat().st_size
    whole.add(["c", "d"], [["3"], ["4"]])
    data = (tmp_path / "whole").read_bytes()
    for cut in range(len(data) + 1):
        path = tmp_path / f"cut{cut}"
        path.write_bytes(data[:cut])
        journal = AnswerJournal(path)
        assert journal.holds(["a", "b"]) == (cut >= first)
        assert cut < first or journal["b"] == ["zwei\u2028\ud800"]
        assert journal.holds(["c"]) == journal.holds(["a", "d"]) == (cut == len(data))
        if not journal.holds(["a"]):
            journal.add(["a", "b"], [["1"], ["zwei\u2028\ud800"]])
        if not journal.holds(["c"]):
            journal.add(["c", "d"], [["3"], ["4"]])
        assert path.read_bytes() == data


def test_garbage_is_not_read_as_answers_and_a_batch_without_an_answer_for_every_key_is_refused(tmp_path):
    (tmp_path / "j").write_bytes(b'{"k": 1}\n[["k", ["x"]]]\n')
    assert not AnswerJournal(tmp_path / "j").holds(["k"])
    with pytest.raises(ValueError):
        AnswerJournal(tmp_path / "j").add(["a", "b"], [["1"]])


IDENTITY = {"model": "a" * 40, "dtype": "float32", "task": ["t", 1], "prompt": "p", "stop": []}


@pytest.mark.parametrize("name", list(IDENTITY))
def test_a_key_changes_with_every_part_of_its_identity(name):
    assert answer_key(IDENTITY) == answer_key(dict(reversed(IDENTITY.items())))
    assert answer_key({**IDENTITY, name: "another"}) != answer_key(IDENTITY)
