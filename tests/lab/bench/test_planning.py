"""The benchmark of plans: rows, growth exponents, and a plan in this process."""

from l0arm.lab.bench import planning


def row(layers: int, seconds: float) -> dict[str, object]:
    size = {"layers": layers, "width": 256}
    figures = {"parameters": 1000 * layers, "seconds": seconds, "extra": 1.5, "groups": layers}
    return {"series": "layers", "network": "transformer", "size": size, "options": {}, **figures}


def test_the_table_has_the_exponents_of_a_series() -> None:
    environment = {"torch": "2", "cpu": "c", "load_before": 0.0, "load_after": 0.0}
    rows = [row(2, 3.0), row(4, 12.0), row(8, 48.0)]
    found = planning.text({"quick": False, "rows": rows, "environment": environment})
    assert "CPU seconds grow as layers^2.00" in found
    assert "CPU seconds grow as parameters^2.00" in found
    assert "transformer layers 2, width 256" in found


def test_every_case_has_a_network_and_the_smallest_is_planned() -> None:
    assert {case.network for case in planning.cases(quick=False)} <= set(planning.NETWORKS)
    case = planning.cases(quick=True)[0]
    found = planning.work(case.network, {"layers": 1, "width": 64}, {})
    assert found["groups"] == 2  # heads and neurons of the one layer
    assert found["masked"] == 0
    assert found["seconds"] > 0
