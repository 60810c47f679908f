"""One signal stops the work, once; clean-up is never torn."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from ae.host import signals


def send(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", signals.HANDLED)
def test_every_signal_is_one_interrupt(number: int) -> None:
    with pytest.raises(KeyboardInterrupt), signals.handled():
        send(number)


def test_the_second_waits_for_clean_up() -> None:
    steps = []

    def work() -> None:
        try:
            send()
        finally:
            send()
            send(signal.SIGTERM)
            steps.append("cleaned up")

    with pytest.raises(KeyboardInterrupt), signals.handled():
        work()
    assert steps == ["cleaned up"]


def test_handlers_come_back() -> None:
    before = [signal.getsignal(number) for number in signals.HANDLED]
    with signals.handled():
        assert signal.getsignal(signal.SIGTERM) is not before[1]
    assert [signal.getsignal(number) for number in signals.HANDLED] == before


def test_a_shield_holds_the_signal_back() -> None:
    steps = []

    def work() -> None:
        with signals.shielded():
            send()
            with signals.shielded():
                send()
            steps.append("whole")
        steps.append("never")

    with pytest.raises(KeyboardInterrupt), signals.handled():
        work()
    assert steps == ["whole"]


def test_a_shield_during_clean_up_raises_nothing() -> None:
    steps = []

    def work() -> None:
        try:
            send()
        finally:
            with signals.shielded():
                send()
            steps.append("cleaned up")

    with pytest.raises(KeyboardInterrupt), signals.handled():
        work()
    assert steps == ["cleaned up"]


def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.handled():
            send(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_are_left_alone() -> None:
    ran = []

    def work() -> None:
        with signals.handled(), signals.shielded():
            ran.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ran == [True]
