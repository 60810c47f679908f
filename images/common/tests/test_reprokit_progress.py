import io
import subprocess
import sys

from reprokit.progress import Progress


def test_steps_are_lines_that_the_launcher_reads():
    stream = io.StringIO()
    progress = Progress(3, stream)
    progress.step("first\nstep")
    progress.step(count=5)
    assert stream.getvalue().splitlines() == ["::progress 1/3 first step", "::progress 3/3"]


def test_cannot_run_leaves_with_77_and_the_reason_last():
    code = (
        "import sys; from reprokit.skip import cannot_run; "
        "print('noise', file=sys.stderr); cannot_run('needs\\nsm_80')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 77
    assert done.stderr.splitlines() == ["noise", "needs sm_80"]
