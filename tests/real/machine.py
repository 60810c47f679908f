"""A second machine for tests: a Docker daemon with files and a host name of its own, and an sshd.

It is this machine in other namespaces: the folder that tests write to is hidden from its daemon, so
a bind mount of it cannot work, as on a machine across the network. Needs root.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

DOCKER = "/usr/bin/docker"
NAME = "far-machine"

SSHD = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {home}/host_key
AuthorizedKeysFile {home}/client_key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
SetEnv DOCKER_HOST={endpoint}
"""

SSH = """\
Host *
    IdentityFile {home}/client_key
    UserKnownHostsFile {home}/known_hosts
    StrictHostKeyChecking yes
"""


class FarMachine:
    """One daemon, reached as `endpoint` (a socket), `tcp` (with TLS), and over ssh."""

    def __init__(self, *, hidden: Path | None, tls: bool = False) -> None:
        """`hidden`: a folder that its daemon does not see as we do."""
        self.home = Path(tempfile.mkdtemp(prefix="ae-far-", dir="/tmp"))  # short: sockets
        self.endpoint = f"unix://{self.home}/docker.sock"
        self._hidden = hidden
        self._tls = tls
        self._sshd: subprocess.Popen[bytes] | None = None
        self._daemon: subprocess.Popen[bytes] | None = None
        if tls:
            self.tcp_port = free_port()
            make_certificates(self.home / "certs")

    def start(self) -> None:
        """Start the daemon and wait until it answers."""
        words = ["/usr/sbin/dockerd", "--data-root", str(self.home / "data")]
        words += ["--exec-root", str(self.home / "exec"), "-p", str(self.home / "pid")]
        words += ["--bridge", "none", "--iptables=false", "-H", self.endpoint]
        if self._tls:
            certs = self.home / "certs"
            words += ["-H", f"tcp://127.0.0.1:{self.tcp_port}", "--tlsverify"]
            words += ["--tlscacert", f"{certs}/ca.pem", "--tlscert", f"{certs}/server.pem"]
            words += ["--tlskey", f"{certs}/server-key.pem"]
        if self._hidden is not None:
            script = 'hostname "$1"; mount -t tmpfs tmpfs "$2"; shift 2; exec "$@"'
            inside = ["sh", "-c", script, "sh", NAME, str(self._hidden)]
            words = ["unshare", "--mount", "--uts", *inside, *words]
        (self.home / "pid").unlink(missing_ok=True)
        with (self.home / "dockerd.log").open("ab") as log:
            self._daemon = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        end = time.monotonic() + 30
        while self.docker("version", check=False).returncode != 0:
            if time.monotonic() > end or self._daemon.poll() is not None:
                raise RuntimeError((self.home / "dockerd.log").read_text()[-2000:])
            time.sleep(0.1)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop the daemon; KILL leaves its containers running, as a crash does."""
        if self._daemon is not None and self._daemon.poll() is None:
            self._daemon.send_signal(number)
            self._daemon.wait(60)

    def start_ssh(self) -> str:
        """Start an sshd there; return the endpoint. `ssh_path` has an ssh that knows it."""
        assert self._daemon is not None
        port = free_port()
        for key in ("host_key", "client_key"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.home / key))
        public = (self.home / "host_key.pub").read_text()
        (self.home / "known_hosts").write_text(f"[127.0.0.1]:{port} {public}")
        (self.home / "sshd_config").write_text(
            SSHD.format(port=port, home=self.home, endpoint=self.endpoint)
        )
        (self.home / "ssh_config").write_text(SSH.format(home=self.home))
        self.ssh_path.mkdir(mode=0o700)
        wrapper = self.ssh_path / "ssh"
        wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {self.home}/ssh_config "$@"\n')
        wrapper.chmod(0o755)
        Path("/run/sshd").mkdir(exist_ok=True)
        with (self.home / "sshd.log").open("ab") as log:
            self._sshd = subprocess.Popen(
                ["nsenter", "--target", str(self._daemon.pid), "--mount", "--uts",
                 "/usr/sbin/sshd", "-D", "-e", "-f", str(self.home / "sshd_config")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + 10
        while not answers(port):
            assert time.monotonic() < end, (self.home / "sshd.log").read_text()
            time.sleep(0.05)
        return f"ssh://root@127.0.0.1:{port}"

    @property
    def ssh_path(self) -> Path:
        """A folder for PATH."""
        return self.home / "bin"

    def make_context(self, config: Path) -> None:
        """Write a docker context `far` with TLS, as `docker context create` does, and use it."""
        where = f"host=tcp://127.0.0.1:{self.tcp_port}"
        certs = self.home / "certs"
        where += f",ca={certs}/ca.pem,cert={certs}/cert.pem,key={certs}/key.pem"
        environment = {**os.environ, "DOCKER_CONFIG": str(config)}
        environment.pop("DOCKER_HOST", None)
        for words in (("create", "far", "--docker", where), ("use", "far")):
            run(DOCKER, "context", *words, env=environment)

    def take_image(self, source: str, image: str) -> None:
        """Copy an image from another daemon."""
        saver = subprocess.Popen([DOCKER, "-H", source, "save", image], stdout=subprocess.PIPE)
        run(DOCKER, "-H", self.endpoint, "load", "--quiet", stdin=saver.stdout)
        assert saver.stdout is not None
        saver.stdout.close()
        assert saver.wait(60) == 0

    def docker(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Ask the daemon directly."""
        argv = [DOCKER, "-H", self.endpoint, *words]
        return subprocess.run(argv, capture_output=True, text=True, check=check)

    def close(self) -> None:
        """Stop all of it and take its files away."""
        if self._sshd is not None:
            self._sshd.terminate()
            self._sshd.wait(10)
        if self._daemon is not None and self._daemon.poll() is None:
            left = self.docker("ps", "-aq", check=False).stdout.split()
            if left:
                self.docker("rm", "-f", *left, check=False)
        self.stop()
        # A daemon that was killed has left its folder mounted on itself.
        subprocess.run(["umount", "--lazy", self.home / "data"], capture_output=True, check=False)
        shutil.rmtree(self.home, ignore_errors=True)


def make_certificates(folder: Path) -> None:
    """A CA, and a server's and a client's certificate, for 127.0.0.1."""
    folder.mkdir()
    new = ("openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    run(*new, "-x509", "-subj", "/CN=ca", "-days", "2",
        "-keyout", f"{folder}/ca-key.pem", "-out", f"{folder}/ca.pem")  # fmt: skip
    for name, key, use in (("server", "server-key", "serverAuth"), ("cert", "key", "clientAuth")):
        (folder / "ext").write_text(f"subjectAltName=IP:127.0.0.1\nextendedKeyUsage={use}\n")
        run(*new, "-subj", f"/CN={name}", "-keyout", f"{folder}/{key}.pem", "-out", f"{folder}/csr")
        run("openssl", "x509", "-req", "-in", f"{folder}/csr", "-CA", f"{folder}/ca.pem",
            "-CAkey", f"{folder}/ca-key.pem", "-CAcreateserial", "-days", "2",
            "-extfile", f"{folder}/ext", "-out", f"{folder}/{name}.pem")  # fmt: skip


def answers(port: int) -> bool:
    """Whether somebody listens on a TCP port of the loopback address."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    """A TCP port of the loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(*argv: str, **options: Any) -> None:
    """Run a short program that must succeed."""
    subprocess.run(argv, check=True, capture_output=True, timeout=60, **options)
