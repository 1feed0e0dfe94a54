"""scripts/requirements.txt: every package once on every Python that it is written for, and in an exact version."""

import pytest
from conftest import SOURCE_DIR

requirements = pytest.importorskip("packaging.requirements", reason="no packaging, which comes with pytest")
LINES = (SOURCE_DIR / "scripts/requirements.txt").read_text(encoding="utf-8").splitlines()
PACKAGES = [requirements.Requirement(line.partition(" #")[0]) for line in LINES if not line.startswith("#")]
VERSIONS = [f"3.{minor}" for minor in range(9, 16)]
WITHOUT = {"3.15": {"matplotlib"}}  # what has no wheel there; its tests skip


def test_versions_are_exact():
    assert [str(package) for package in PACKAGES if not str(package.specifier).startswith("==")] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_each_package_is_named_once(version):
    names = [
        package.name
        for package in PACKAGES
        if not package.marker
        or package.marker.evaluate({"python_version": version, "python_full_version": f"{version}.0"})
    ]
    assert sorted(names) == sorted({package.name for package in PACKAGES} - WITHOUT.get(version, set()))
