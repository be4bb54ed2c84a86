"""A path to a user's code leads to it, or to one error that says what is wrong with it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from clawrl.plugins import PluginError, is_dotted, load


@pytest.fixture(autouse=True)
def users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_pack").mkdir()
    (tmp_path / "users_pack" / "__init__.py").write_text("")
    (tmp_path / "users_pack" / "good.py").write_text("class Outer:\n    class Inner: ...\nnumber = 3\n")
    (tmp_path / "users_pack" / "needy.py").write_text("import no_such_dependency\n")
    (tmp_path / "users_pack" / "faulty.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.startswith("users_pack")]:
        monkeypatch.delitem(sys.modules, name)


def test_functions_classes_and_what_is_inside_them_are_found() -> None:
    assert load("pathlib:Path") is Path
    assert load("users_pack.good:Outer.Inner").__qualname__ == "Outer.Inner"


@pytest.mark.parametrize(
    ("path", "problem", "remedy", "cause"),
    [
        ("pathlib.Path", "not a path to code", "package.module:name", None),
        (":Path", "not a path to code", "package.module:name", None),
        ("pathlib:", "not a path to code", "package.module:name", None),
        ("..pathlib:Path", "importing ..pathlib failed with", "make `python -c", Exception),
        ("no_such_module:Path", "no module 'no_such_module'", "PYTHONPATH", ModuleNotFoundError),
        ("users_pack.missing:Path", "no module 'users_pack.missing'", "PYTHONPATH", ModuleNotFoundError),
        ("users_pack.needy:f", "No module named 'no_such_dependency'", "make `python -c", ModuleNotFoundError),
        ("users_pack.faulty:f", "failed with ZeroDivisionError", "make `python -c", ZeroDivisionError),
        ("users_pack.good:missing", "users_pack.good has no 'missing'", "spelling", None),
        ("users_pack.good:Outer.missing", "users_pack.good.Outer has no 'missing'", "spelling", None),
        ("users_pack.good:number", "users_pack.good.number is a int", "function or a class", None),
    ],
)
def test_each_mistake_gets_one_error_with_the_path_and_the_remedy(
    path: str, problem: str, remedy: str, cause: type[Exception] | None
) -> None:
    with pytest.raises(PluginError) as caught:
        load(path)
    assert repr(path) in str(caught.value) and problem in str(caught.value) and remedy in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert caught.value.__cause__ is None if cause is None else isinstance(caught.value.__cause__, cause)


def test_a_path_is_told_from_a_name() -> None:
    assert is_dotted("package.module:name") and not is_dotted("binary_rl")
