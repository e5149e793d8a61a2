"""The views: what a log line says, how the time left is guessed, that nothing breaks for a missing metric."""

import io

import pytest
from rich.console import Console

from strop.base import progress
from strop.base.progress import Progress
from strop.base.text import counted, duration
from strop.base.view import Pace, PlainView, SilentView, View, describe_step
from strop.report.console import LiveView, open_view, sparkline

STEP = {
    "reward/mean": 0.25,
    "pass_rate": 0.625,
    "entropy": 0.31,
    "length/mean": 52.13,
    "truncation_rate": 0.0078,
    "ratio/mean": 1.0,
    "ratio/max": 1.32,
    "seconds/rollout": 6.1,
    "seconds/verify": 0.1,
    "seconds/update": 3.3,
    "seconds/other": 0.3,
    "seconds/step": 9.8,
    "tokens_per_second": 5120.4,
    "mismatch/mean": None,
    "grad_norm": float("nan"),
}


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_left_follows_the_latest_steps() -> None:
    clock = FakeClock()
    pace = Pace(total=100, clock=clock, window=5)
    assert pace.left is None
    for step in range(1, 11):
        clock.now += 2.0
        pace.advance(step)
    assert pace.left == pytest.approx(180.0) and pace.elapsed == pytest.approx(20.0)
    for step in range(11, 21):
        clock.now += 4.0
        pace.advance(step)
    assert pace.left == pytest.approx(320.0)
    clock.now += 3.0
    assert pace.left == pytest.approx(317.0)


def test_a_resumed_stage_does_not_count_steps_it_did_not_make() -> None:
    clock = FakeClock()
    pace = Pace(total=100, clock=clock)
    clock.now += 10.0
    pace.advance(91)
    assert pace.left == pytest.approx(90.0)


@pytest.mark.parametrize(("seconds", "text"), [(8.7, "9 s"), (185, "3 min 05 s"), (7620, "2 h 07 min")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "things", "text"), [(1, "steps", "1 step"), (0, "steps", "0 steps"), (1200, "problems", "1,200 problems")]
)
def test_one_of_them_is_no_plural(count: int, things: str, text: str) -> None:
    """In the plain view, as in the live one."""
    assert counted(count, things) == text
    stream, console = io.StringIO(), Console(file=io.StringIO(), width=100)
    PlainView(stream).stage("rl", count, things)
    assert stream.getvalue() == f"rl: {text}\n"
    live = LiveView("run", console)
    live.stage("rl", count, things)
    live.advance(count, {})
    live.stage("evaluate", None)
    live.close()
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert (f"rl: {text} in" in shown) == (count > 0)


def test_a_plain_line_says_what_matters() -> None:
    line = describe_step("rl", 12, 40, STEP, left=274.0)
    assert line == (
        "rl 12/40 · pass 62.5% · reward 0.25 · entropy 0.31 · length 52.1 · truncated 0.8% · ratio max 1.32 · "
        "tok/s 5,120 · 9.8 s (rollout 6.1, verify 0.1, update 3.3, other 0.3) · left 4 min 34 s"
    )


def test_plain_view_thins_out_quick_steps_but_never_rl_steps() -> None:
    clock, stream = FakeClock(), io.StringIO()
    view = PlainView(stream, clock, interval=2.0)
    view.stage("sft", 100)
    for step in range(1, 101):
        clock.now += 0.1
        view.advance(step, {"loss": 1.0})
    written = [line for line in stream.getvalue().splitlines() if line.startswith("sft ")]
    assert written[0].startswith("sft 1/100") and written[-1].startswith("sft 100/100") and len(written) < 10
    view.stage("rl", 3)
    for step in (1, 2, 3):
        view.advance(step, STEP)
    view.note("checkpoint of step 3")
    view.close()
    assert stream.getvalue().count("\nrl ") == 3 and stream.getvalue().endswith("checkpoint of step 3\n")


def test_what_arrives_in_bursts_is_called_what_it_is_and_has_no_early_forecast() -> None:
    """The first of 100 completions takes as long as the 63 generated beside it."""
    clock, stream = FakeClock(), io.StringIO()
    view = PlainView(stream, clock, interval=0.0)
    view.stage("evaluate", 100, "completions")
    clock.now += 10.0
    for done in range(1, 65):
        view.advance(done, {"pass_rate": 0.5})
    clock.now += 10.0
    view.advance(65, {"pass_rate": 0.5})
    lines = stream.getvalue().splitlines()
    assert lines[0] == "evaluate: 100 completions" and not any("left" in line for line in lines[1:10])
    assert lines[64].endswith("left 6 s") and lines[65].endswith("left 11 s")  # 36 at 6.4 a second; 35 at 3.25


def test_a_late_evaluation_is_shown_with_its_step_and_its_benchmarks() -> None:
    found = {"evaluation/pass_rate": 0.5, "evaluation/pass_rate/code": 0.1, "evaluation/a:b/pass_rate": 0.125}
    stream = io.StringIO()
    PlainView(stream).evaluated(4, found)
    assert stream.getvalue() == "evaluation of step 4 · held-out 50.0% · a:b 12.5%\n"
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    view = LiveView("strop · test", console)
    view.stage("rl", 40)
    view.advance(6, STEP)
    view.evaluated(4, found)
    with console.capture() as captured:
        console.print(view._render())
    view.close()
    assert "rl 6/40" in captured.get() and "50.0%" in captured.get() and "12.5%" in captured.get()


def test_not_a_terminal_means_plain_lines() -> None:
    with open_view(stream=io.StringIO()) as view:
        assert isinstance(view, PlainView)


def test_live_view_draws_every_kind_of_step() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    view = LiveView("strop · test", console)
    view.stage("sft", 2)
    view.advance(1, {"loss": 2.5, "lr": 1e-3})
    view.stage("rl", 40)
    view.advance(11, {**STEP, "evaluation/pass_rate": 0.4})
    view.advance(12, STEP)
    view.note("held out: 256 problems")
    with console.capture() as captured:
        console.print(view._render())
    view.close()
    view.close()
    drawn = captured.get()
    for expected in ("rl 12/40", "left", "62.5%", "40.0%", "rollout 6.1", "5,120"):
        assert expected in drawn
    assert "mismatch" not in drawn and "nan" not in drawn


def test_views_accept_a_stage_without_total_and_an_empty_step() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    views: list[View] = [SilentView(), PlainView(io.StringIO()), LiveView("", console)]
    for view in views:
        view.advance(1, {})
        view.stage("evaluate", None)
        view.advance(1, {})
        view.close()


def test_sparkline() -> None:
    assert sparkline([]) == "" and sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert len(sparkline([float(i % 7) for i in range(500)], width=24)) == 24


def test_what_is_being_done_is_seen_with_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    now = Progress()
    monkeypatch.setattr(progress, "CURRENT", now)
    stream = io.StringIO()
    view = PlainView(stream, FakeClock())
    view.stage("rl", 4)
    now.part("evaluation", 3, 30)
    view.beat(now.text)
    assert stream.getvalue().splitlines()[1:] == ["rl 0/4 · evaluation 3/30 for 0 s"]
    live = LiveView("t", Console(file=io.StringIO(), width=80, force_terminal=True))
    live.stage("rl", 4)
    console = Console(width=80)
    with console.capture() as seen:
        console.print(live._render())
    now.part("evaluation", 30, 30)
    with console.capture() as gone:
        console.print(live._render())
    live.close()
    assert "evaluation 3/30 for 0 s" in seen.get() and "evaluation" not in gone.get()
