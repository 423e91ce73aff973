"""What a release needs: one version and address, pinned actions, and commands and public names that are there."""

import ast
import re
import runpy
import subprocess
from pathlib import Path

import pytest

import ssgd
from ssgd.lab.versions import OLDEST

from .server import serving

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="the source archive has no workflows")


def script(name):
    return runpy.run_path(str(ROOT / "scripts" / name))


# --- version and address ----------------------------------------------------------------------------------------------


@pytest.fixture
def ready(tmp_path):
    """The files that name the version, as they are on the day of a release."""
    for place in script("check_release.py")["PLACES"]:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / place).read_text().replace("/OWNER/", "/somebody/")
        (tmp_path / place).write_text(text.replace("] - not released yet", "] - 2030-01-31"))
    return tmp_path


def test_a_release_begins_where_all_files_name_the_version_of_the_tag(ready):
    wrong = script("check_release.py")["wrong"]
    assert list(wrong(ready, f"v{ssgd.__version__}")) == []
    assert len(list(wrong(ready, "v99.0.0"))) == 4
    (ready / "CITATION.cff").write_text("version: 0.0.1\n")
    assert list(wrong(ready, f"v{ssgd.__version__}")) == [
        f"CITATION.cff has 0.0.1, but the tag is v{ssgd.__version__}: tag v0.0.1, or change the file"
    ]


def test_a_release_waits_for_a_date_and_an_address(ready):
    for place in ("pyproject.toml", "CHANGELOG.md"):
        text = (ready / place).read_text().replace("/somebody/", "/OWNER/")
        (ready / place).write_text(re.sub(r"\d{4}-\d\d-\d\d$", "not released yet", text, flags=re.MULTILINE))
    found = list(script("check_release.py")["wrong"](ready, f"v{ssgd.__version__}"))
    assert [sentence.partition(" ")[0] for sentence in found] == ["CHANGELOG.md", "pyproject.toml"]


def test_the_address_of_the_repository_stands_in_one_place():
    (address,) = re.findall(r'^Repository = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a checkout")
    texts = [ROOT / name for name in listed.stdout.split() if name.endswith((".md", ".toml", ".yml", ".cff", ".py"))]
    assert [path.name for path in texts if path.exists() and address in path.read_text()] == ["pyproject.toml"]


def test_readme_works_where_there_is_no_repository_around_it():
    pytest.importorskip("hatchling")
    whole = script("readme_hook.py")["with_whole_links"]((ROOT / "README.md").read_text(), "https://host/us", "v1.2")
    targets = re.findall(r"\]\(([^)\s]+)\)|src(?:set)?=\"([^\"]+)\"", whole)
    assert len(targets) > 25 and all(re.match("https://|#", link or picture) for link, picture in targets)
    assert all(f'"https://host/us/raw/v1.2/docs/gains-{theme}.svg"' in whole for theme in ("light", "dark"))
    assert "(https://host/us/blob/v1.2/docs/method.md#when-not)" in whole


# --- workflows --------------------------------------------------------------------------------------------------------


def test_actions_are_pinned_by_hash():
    used = [use for path in WORKFLOWS for use in re.findall(r"uses: (.+)", path.read_text())]
    assert used and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use) for use in used)
    assert len({use.partition("@")[0] for use in used}) == len(set(used))  # the same everywhere


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_commands_of_workflows_are_there(path):
    text, targets = path.read_text(), (ROOT / "Makefile").read_text()
    assert "\npermissions:\n  contents: read\n" in text
    assert text.count("runs-on:") == text.count("timeout-minutes:")
    for target in re.findall(r"make ([\w-]+)", text):
        assert re.search(rf"^{target}:", targets, re.MULTILINE), target
    for file in re.findall(r"scripts/[\w.]+", text):
        assert (ROOT / file).is_file()


def test_the_oldest_torch_and_python_are_tried():
    text, project = (ROOT / ".github/workflows/tests.yml").read_text(), (ROOT / "pyproject.toml").read_text()
    (python,) = re.findall(r'requires-python = ">=([\d.]+)"', project)
    newest = max(re.findall(r"Python :: (3\.\d+)", project), key=lambda version: int(version.partition(".")[2]))
    assert f'torch: ["{OLDEST[0]}.{OLDEST[1]}.0", newest]' in text and f'python: ["{python}", "{newest}"]' in text


def test_what_checks_a_commit_has_the_versions_of_the_lock():
    locked = (ROOT / "constraints.txt").read_text().splitlines()
    for pinned in re.findall(r"\[(ruff==.+)\]", (ROOT / ".pre-commit-config.yaml").read_text()):
        assert pinned in locked


def test_the_core_that_is_tried_under_another_torch_is_there():
    (names,) = re.findall(r"^core=\((.+)\)$", (ROOT / "scripts" / "try_torch.sh").read_text(), re.MULTILINE)
    assert all((ROOT / "tests" / f"test_{name}.py").is_file() for name in names.split())


# --- links ------------------------------------------------------------------------------------------------------------


def test_a_lost_page_is_told_from_one_that_is_there():
    asked, links = (script("check_links.py")[name] for name in ("asked", "links"))
    with serving({"/here": b"text"}) as server:
        text = f"[a]({server.address}here#part) and [b]({server.address}gone), [c](docs/howto.md)"
        assert [asked(link) for link in links(text)] == [200, 404]


# --- what is public ---------------------------------------------------------------------------------------------------


def test_what_pages_import_is_public():
    """Listed in the reference, or a module that has something there."""
    listed = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE)
    public = {".".join(name.split(".")[:n]) for name in listed for n in range(1, name.count(".") + 2)}
    public |= {"ssgd.lab.experiments", "ssgd.lab.models.MODELS"}  # the commands list what is in them
    blocks = [block for page in PAGES for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)]
    imports = [node for block in blocks for node in ast.walk(ast.parse(block)) if isinstance(node, ast.ImportFrom)]
    used = {f"{node.module}.{alias.name}" for node in imports for alias in node.names}
    assert {name for name in used if name.startswith("ssgd")} <= public


@pytest.mark.parametrize("module", ["ssgd", "ssgd.analysis", "ssgd.jax", "ssgd.methods"])
def test_all_that_is_for_import_is_public(module):
    listed = (ROOT / "docs" / "reference.md").read_text()
    tree = ast.parse((ROOT / "src" / Path(*module.split(".")) / "__init__.py").read_text())
    (names,) = (node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "__all__")
    names = set(ast.literal_eval(names)) - {"METHODS"}  # which the page of methods lists
    assert all(f"\n::: {module}.{name}\n" in listed for name in names)
