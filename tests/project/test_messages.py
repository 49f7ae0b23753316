"""docs/troubleshooting.md lists every message that the package raises, and no other."""

from pathlib import Path

from tests.project import messages

PAGE = messages.ROOT / "docs" / "troubleshooting.md"

SOURCE = """
def check(x, y, wanted):
    if x:
        raise ValueError(expected("check", "x", "be a size", repr(x)))
    words = "is replaced"
    words = "is on no device"
    if y:
        words = f"is on {y}" if y > 1 else "is nowhere"
    elif x:
        words = f"has the device {y}"
    problem = TypeError(f"{y}: it {words}{nearest(y, x)}; there are " + ", ".join(x))
    if problem:
        raise problem
    raise Skip("told in a report")


def later(x):
    raise LaunchError(
        f"{x}: a message over "
        f"two lines {x!r} {x}"
    )
"""


def test_every_message_is_listed_and_no_other() -> None:
    raised = messages.all_messages()
    listed = messages.listed(PAGE.read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(set(listed)), "a message is listed twice"
    new = [f"{raised[message][0]}: {message}" for message in raised if message not in listed]
    assert not new, "add to a table of docs/troubleshooting.md, with what to do:\n" + "\n".join(new)
    assert not set(listed) - set(raised), "no longer raised: take out of docs/troubleshooting.md"


def test_the_list_has_messages_of_every_kind(tmp_path: Path) -> None:
    """Of literals, of names that branches assign, of calls of `expected`, and of exceptions that are raised later."""
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    assert sorted(messages.raised(path)) == [
        ("check: `x` must be a size, got …", 4),
        ("…: a message over two lines …", 18),
        ("…: it has the device …; there are …", 11),
        ("…: it is nowhere; there are …", 11),
        ("…: it is on no device; there are …", 11),
        ("…: it is on …; there are …", 11),
    ]


def test_the_list_has_the_faults_of_the_simulators_runtime(tmp_path: Path) -> None:
    path = tmp_path / "faults.cpp"
    path.write_text('x();\nappend(fault, "mask 0x%08x of %s: %lu bytes", a);\nappend(fault, "%s", text);\n')
    assert list(messages.of_the_runtime(path)) == [("mask … of … bytes", 2)]


def test_exceptions_that_are_left_out_are_there() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in messages.LIBRARY)
    for name in messages.INSIDE:
        assert f"class {name}(" in source, f"there is no exception {name} any more"
    assert {"CompileError", "LaunchError", "CheckFailed", "TypeError"} <= messages.exceptions()
