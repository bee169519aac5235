"""`rarely certify` end to end: verdicts, exit codes, the witness file."""

from __future__ import annotations

import json

import numpy as np

from rarely.demo import assets


def test_accepts_by_proof(rarely):
    done = rarely("certify", assets() / "cruise.onnx", assets() / "brake-25m-fast.vnnlib", "--p-max", "1e-9")
    assert "accepted: p < 1e-09 by proof" in done.stdout


def test_accepts_and_rejects_around_the_probability(rarely, tmp_path):
    files = (assets() / "cruise.onnx", assets() / "brake-30m.vnnlib")  # p is 1.7e-8
    out = tmp_path / "gate.json"
    rarely("certify", *files, "--p-max", "1e-6", "--json", out)
    assert json.loads(out.read_text())["ruling"] == "accepted"
    witness = tmp_path / "w.npz"
    rarely("certify", *files, "--p-max", "1e-9", "--witness", witness, code=1)
    assert (np.load(witness)["scores"] >= 0).all()


def test_undecided_has_its_own_code(rarely):
    files = (assets() / "signs.onnx", assets() / "square-noise.vnnlib")  # p is 9e-8, in 400 dimensions
    rarely("certify", *files, "--p-max", "9e-8", "--timeout", "1", "--max-evaluations", "3000", code=3)


def test_a_bad_threshold_is_an_error(rarely):
    done = rarely("certify", assets() / "cruise.onnx", assets() / "brake-30m.vnnlib", "--p-max", "2", code=2)
    assert "p_max" in done.stderr


def test_a_network_that_ends_the_program_is_not_accepted(rarely, tmp_path):
    """Scripts end with `sys.exit(main())`: their exit code 0 was ours, which means accepted."""
    asked = (assets() / "brake-30m.vnnlib", "--p-max", "1e-9")
    for source in ("import sys\nsys.exit(0)\n", "import sys\ndef net(x):\n    sys.exit(0)\n"):
        (tmp_path / "net.py").write_text(source)
        done = rarely("certify", f"{tmp_path}/net.py:net", *asked, code=2)
        assert "SystemExit: 0" in done.stderr
        assert "Traceback" not in done.stderr
