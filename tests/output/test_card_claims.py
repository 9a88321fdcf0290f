"""Every sentence of a card is held against numbers that are computed here, in the cases where it would be false.

The oracle is numpy: elements counted from the stored tensors, and rounding done by ml_dtypes to the same merge written
in float32.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import stream_helpers
from builders import T, f32, random_base, tensor, write_model
from report_helpers import report_data
from stream_helpers import CONFIG, plan_of, tensors_of, values_of, write_family

from hubmerge.methods import registry
from hubmerge.methods.base import Scope
from hubmerge.output.card import LOST_AT_LEAST, render_card
from hubmerge.output.report import Report
from hubmerge.statistics.statistics import Overlaps

SIZES = {
    "model.embed_tokens.weight": (37, 16),
    "model.layers.0.self_attn.q_proj.weight": (64, 64),
    "model.layers.0.mlp.up_proj.weight": (4097,),
    "model.layers.1.mlp.up_proj.weight": (63, 31),
    "model.norm.weight": (63,),
}
METHODS = [name for name, method in registry().items() if "sensitivity" not in method.extras]
Values = Mapping[str, np.ndarray]


def scales_unique_updates(method: str) -> bool:
    counts = Overlaps(np.array([[2, 2], [1, 2]]))
    scope = Scope(registry()[method].parse_parameters({}), (1.0, 1.0), model=counts, tensor=counts)
    return registry()[method].scales(scope)[0] is not None


class Merged:
    """A finished merge, its card, and what numpy makes of its tensors. `exact`: the same merge in float32."""

    def __init__(self, made: Any, out: Path, method: str, exact: Values | None = None, **recipe: Any):
        folder, self.base, self.agents = made
        plan = plan_of(folder, method, **({"agents": len(self.agents)} | recipe))
        result = stream_helpers.run(plan, out, threads=1, backend="eager")
        self.report = stream_helpers.report_of(plan, result)
        self.stored: Values = {k: v.astype(np.float32) for k, v in tensors_of(out, plan).items()}
        self.exact = self.stored if exact is None else exact
        self.card = render_card(self.report)

    def factor(self, output: Values, agent: int) -> float | None:
        """Σ(θ* − θ0)·δ / Σ δ² over what this agent alone changed, in float64."""
        above = below = 0.0
        for name, base in self.base.items():
            deltas = [np.float64(a[name]) - base for a in self.agents]
            active = [np.abs(d) > self.report.statistics["epsilon"] for d in deltas]
            alone = active[agent] & (np.sum(active, axis=0) == 1)
            above += float(((output[name] - np.float64(base)) * deltas[agent])[alone].sum())
            below += float(np.square(deltas[agent])[alone].sum())
        return above / below if below else None

    def nearest(self) -> Values:
        """The unrounded merge, rounded to nearest by ml_dtypes."""
        kind = ml_dtypes.bfloat16 if self.report.dtype == ("BF16",) else np.float32
        return {name: v.astype(kind).astype(np.float32) for name, v in self.exact.items()}

    def row(self, agent: str) -> dict[str, str]:
        """The agent's row in "What the merge kept", by column."""
        lines = self.card.split("<summary>What the merge kept")[1].split("\n")
        head = next(line for line in lines if line.startswith("| Agent"))
        found = next(line for line in lines if line.startswith(f"| `{agent}` |"))
        cells = [[c.strip() for c in line.strip("|").split("|")] for line in (head, found)]
        assert len(cells[0]) == len(cells[1])
        return dict(zip(*cells, strict=True))


def number(text: str) -> float | None:
    return None if text == "—" else float(text.replace("−", "-"))


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Values, list[Values]]:
    """Three BF16 agents that changed 5, 40 and 50%."""
    folder = tmp_path_factory.mktemp("sparse")
    base, agents = write_family(folder, sizes=SIZES)
    return folder, values_of(base), [values_of(a) for a in agents]


WEIGHTS = (0.5, 1.25, 2.0)


@pytest.mark.parametrize("method", METHODS)
def test_what_a_card_says_of_rounding_and_of_lambda_is_so(method, sparse, tmp_path):
    folder, *_ = sparse
    agents = [{"model": str(folder / f"agent{k}"), "weight": w} for k, w in enumerate(WEIGHTS)]
    recipe: dict[str, Any] = {"agents": agents, "parameters": {"steps": 20} if method == "wudi" else {}}
    exact = Merged(sparse, tmp_path / "exact", method, dtype="float32", **recipe)
    assert_card_is_true(exact, method)
    for rounding in ("nearest", "stochastic"):
        out = tmp_path / rounding
        recipe |= {"dtype": "bfloat16", "rounding": rounding}
        assert_card_is_true(Merged(sparse, out, method, exact.stored, **recipe), method)


def assert_card_is_true(merged: Merged, method: str) -> None:
    report, card, nearest = merged.report, merged.card, merged.nearest()
    rescales, sixteen = registry()[method].rescales, report.dtype == ("BF16",)
    used = report.rounding
    other_way = "stochastic" if used == "nearest" else "nearest"
    lost = []
    for k, outcome in enumerate(report.outcomes):
        row = merged.row(outcome.agent)
        before, stored, by_nearest = (merged.factor(v, k) for v in (merged.exact, merged.stored, nearest))
        assert None not in (before, stored, by_nearest)
        assert number(row["Kept, unique"]) == pytest.approx(before, abs=1.1e-3)
        [effective] = [v for key, v in row.items() if key.startswith("Effective") and other_way not in key]
        assert number(effective) == pytest.approx(stored, abs=1.1e-3)
        # a λ is stated only where it, times the weight, is what the unique updates got
        if "Intended λ" in row and (scale := number(row["Intended λ"])) is not None:
            assert before / WEIGHTS[k] == pytest.approx(scale, abs=2e-3)
        # another rounding's column is what that rounding gives, and stands nowhere else
        other = row.get(f"Effective, {other_way} rounding")
        assert (other is not None) == (rescales and sixteen)
        if other is not None and used == "stochastic":
            assert number(other) == pytest.approx(by_nearest, abs=1.1e-3)
        measured = used == "nearest" or rescales or not sixteen
        told = re.search(
            rf"^- `{outcome.agent}`: (\S+) becomes (\S+) with nearest rounding, (\S+)% of (.+) is (lost|added)\.",
            card,
            re.M,
        )
        if told:
            weight = WEIGHTS[k] if told[4] == "λ − 1" else 1.0
            whole = before / weight - (1.0 if told[4] == "λ − 1" else 0.0)
            share = (before - by_nearest) / weight / whole
            assert (share > 0) == (told[5] == "lost")
            assert abs(share) == pytest.approx(float(told[3]) / 100, rel=0.02, abs=2e-4)
            assert abs(share) > LOST_AT_LEAST * 0.99
            lost.append(outcome.agent)
        elif measured and before == 0:  # a method that takes no update of one agent alone
            assert by_nearest == 0
        elif measured:
            assert abs(by_nearest / before - 1) < LOST_AT_LEAST * 1.01
    assert bool(lost) == ("**Rounding to nearest" in card)
    assert ("would have" in card) == bool(lost and used == "stochastic")
    assert not (lost and not sixteen)
    assert ("nearest rounding" in card or "stochastic rounding" in card) == sixteen
    assert ("Intended λ" in card) == scales_unique_updates(method)
    assert scales_unique_updates(method) or method not in ("ram", "ram_plus", "ram_plus_soft")


def one_tensor(folder: Path, moved: Sequence[Callable[[np.ndarray], np.ndarray]], dtype: str = "F32") -> Any:
    """A base of ones, and agents that are `moved(arange(4096))` away from it."""
    base = {"model.layers.0.mlp.up_proj.weight": tensor(np.ones(4096), dtype)}
    agents = [{n: tensor(f32(t) + m(np.arange(4096)), dtype) for n, t in base.items()} for m in moved]
    for name, model in {"base": base, **{f"agent{k}": agent for k, agent in enumerate(agents)}}.items():
        write_model(folder / name, model, config=CONFIG)
    return folder, values_of(base), [values_of(a) for a in agents]


def in_half(step: float, half: int, width: int = 2048) -> Callable[[np.ndarray], np.ndarray]:
    return lambda i: np.where((i >= half * 2048) & (i < half * 2048 + width), step, 0.0)


def test_a_rounding_that_adds_is_not_called_a_loss(tmp_path):
    # at 1 a bf16 step is 2⁻⁷ upwards; 1.4 times 3 steps is 4.2, stored as 4; 1.4 times 2 is 2.8, stored as 3
    made = one_tensor(tmp_path, [in_half(2 * 2.0**-7, 0, 512), in_half(3 * 2.0**-7, 1, 512)], "BF16")
    merged = Merged(made, tmp_path / "o", "ram_quantile", parameters={"lambda": 1.4, "q": 0.5}, rounding="nearest")
    assert "- `agent0`: 1.4000 becomes 1.5000 with nearest rounding, 7.14% of the update is added." in merged.card
    assert "- `agent1`: 1.4000 becomes 1.3333 with nearest rounding, 4.76% of the update is lost." in merged.card


def test_a_factor_of_which_float32_itself_loses_some_is_no_reason_for_stochastic_rounding(tmp_path):
    # at 1 a step of float32 is 2⁻²³: of 90 steps and 1.5 % only whole ones are stored
    made = one_tensor(tmp_path, [in_half(90 * 2.0**-23, 0), lambda i: np.where(i >= 1024, 90 * 2.0**-23, 0.0)])
    merged = Merged(made, tmp_path / "o", "ram_plus", parameters={"r": 0.015, "alpha": 1.0})
    assert "**Rounding to nearest lost part of λ in this model.**\n" in merged.card
    assert "- `agent0`: 1.0150 becomes 1.0111 with nearest rounding, 25.9% of λ − 1 is lost." in merged.card
    assert "tochastic" not in merged.card.split("<summary>What the merge kept")[1].split("</details>")[0]


def test_an_agent_below_epsilon_is_called_lost_only_where_the_method_drops_it(tmp_path):
    made = one_tensor(tmp_path, [in_half(5e-6, 0), in_half(1e-3, 0)])
    dropped = Merged(made, tmp_path / "ram", "ram")
    held = Merged(made, tmp_path / "linear", "linear")
    weight = "model.layers.0.mlp.up_proj.weight"
    alone = np.abs(dropped.stored[weight] - dropped.agents[1][weight]).max()
    assert alone == 0.0
    assert np.abs(held.stored[weight] - held.agents[1][weight] / 2 - held.base[weight] / 2).max() > 1e-6
    assert "Changed nothing above 1e-05, so that the merge holds nothing of it: `agent0`" in dropped.card
    assert "holds nothing of it" not in held.card.replace("statistics hold nothing of it", "")
    assert "Changed nothing above 1e-05, so that the statistics hold nothing of it: `agent0`" in held.card
    # a plain mean keeps more than 1/2 of an update that another agent shares below ε
    assert held.report.outcomes[1].kept_unique == pytest.approx(0.5 + 0.5 * 5e-6 / 1e-3, abs=1e-4)
    assert "a plain mean of the 2 agents keeps 1/2 of what the others left exactly as it was" in held.card
    assert "plain averaging" not in held.card


@pytest.mark.parametrize("second", [1e-3, 2e-3])
def test_updates_of_one_direction_are_twins_only_in_one_size(second, tmp_path):
    card = Merged(one_tensor(tmp_path, [in_half(1e-3, 0), in_half(second, 0)]), tmp_path / "o", "ram").card
    assert ("- Practically the same update twice: `agent0 / agent1`." in card) == (second == 1e-3)


def test_updates_of_the_same_elements_and_size_in_another_direction_are_no_twins(tmp_path):
    steps = (lambda i: np.where(i % 2, 1e-3, 2e-3), lambda i: np.where(i % 2, 2e-3, 1e-3))
    card = Merged(one_tensor(tmp_path, steps), tmp_path / "o", "ram").card
    assert "same update twice" not in card


def test_shares_name_what_several_changed_and_its_two_parts(sparse, tmp_path):
    _, base, agents = sparse
    merged = Merged(sparse, tmp_path, "ram")
    delta = [np.concatenate([(a[n] - base[n]).ravel() for n in base]) for a in agents]
    active = np.abs(delta) > 1e-5
    several = active.sum(0) > 1
    opposite = several & ((active & (np.array(delta) > 0)).any(0)) & ((active & (np.array(delta) < 0)).any(0))
    shares = merged.report.statistics["total"]["shares"]
    assert shares["several"] == several.mean()
    assert (shares["conflict"], shares["overlap"]) == (opposite.mean(), pytest.approx((several & ~opposite).mean()))
    told = re.search(r"these elements, (\S+)% were .* namely (\S+)% in opp.* and (\S+)% with one sign", merged.card)
    wanted = [100 * s.mean() for s in (several, opposite, several & ~opposite)]
    assert [float(n) for n in told.groups()] == pytest.approx(wanted, rel=5e-3)


def test_shares_are_of_what_was_merged_and_not_of_what_was_copied(tmp_path):
    sizes = {"model.layers.0.mlp.up_proj.weight": (64, 64)}
    base = random_base(3, "BF16", sizes) | {"model.steps": T("I64", (1000,), np.arange(1000, dtype="<i8"))}
    write_model(tmp_path / "base", base, config=CONFIG)
    for k in range(2):
        name = "model.layers.0.mlp.up_proj.weight"
        write_model(tmp_path / f"agent{k}", base | {name: tensor(f32(base[name]) + 0.5)}, config=CONFIG)
    plan_base = {n: f32(t) for n, t in base.items() if t.dtype != "I64"}
    merged = Merged((tmp_path, plan_base, [plan_base] * 2), tmp_path / "o", "ram")
    assert merged.report.parameters == 5096
    assert "5.10 K parameters (LlamaForCausalLM), 0% of the 4.10 K that were merged changed by no agent" in merged.card


def test_a_mean_that_takes_the_base_in_is_not_told_as_one_of_its_agents(tmp_path):
    made = one_tensor(tmp_path, [in_half(1e-3, 0)])
    card = Merged(made, tmp_path / "o", "linear", parameters={"base_weight": 1.0}).card
    assert "plain mean" not in card
    assert "into its base" in card


def test_weights_that_vary_have_the_mean_that_the_kept_factor_shows(sparse, tmp_path):
    folder, *_ = sparse
    weights: list[Any] = [[0.5, 2.0], [{"filter": "mlp", "value": 0.25}, {"value": 1.0}], 1.0]
    specs = [{"model": str(folder / f"agent{k}"), "weight": w} for k, w in enumerate(weights)]
    merged = Merged(sparse, tmp_path, "ram_plus", agents=specs, dtype="float32")
    parents = {p.label: p.weight for p in merged.report.parents}
    for k, outcome in enumerate(merged.report.outcomes):
        exact = merged.factor(merged.exact, k)
        assert None not in (exact, outcome.scale)
        assert parents[outcome.agent] * outcome.scale == pytest.approx(exact, rel=1e-4)
        assert f"varies, {parents[outcome.agent]:.3g} on average" in merged.card or k == 2


def test_bytes_are_promised_and_letters_explained_as_the_method_allows():
    for name, method in registry().items():
        data = report_data()
        defaults = method.parse_parameters({}).model_dump(mode="json", exclude_none=True)
        data["method"] |= {"name": name, "formula": method.formula, "parameters": defaults}
        card = " ".join(render_card(Report.from_json(data)).split())
        promised = "writes the same bytes again, whatever the chunk size" in card
        assert promised == (name not in ("fisher", "sar", "wudi"))
        assert ("other versions of torch or transformers" in card) == (name in ("fisher", "sar"))
        legend = card[card.index("δ is what") :].split(". ")[0]
        assert ("c the number of agents" in legend) == (name in ("ram", "ram_plus", "ram_plus_soft", "ram_quantile"))
        assert ("that changed an element" in legend) == (name in ("ram", "ram_plus", "ram_plus_soft"))
        assert ("sensitivity" in legend) == ("sensitivity" in method.extras)
        assert "weight" in legend
        # every formula says where the weights go
        assert any(w in method.formula for w in ("wₖ", "wₜ")) or name == "dare_ties"
