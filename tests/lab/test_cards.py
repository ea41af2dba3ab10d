"""Every card that ships is readable, names a kind of server that exists, and its start command has its places filled."""

from __future__ import annotations

from pathlib import Path

import pytest

from homestretch.lab import servers
from homestretch.lab.contract import CARDS as SHIPPED
from homestretch.lab.contract import read_card
from homestretch.lab.errors import WrongUse
from homestretch.lab.servers.managed import ManagedServer, fill

CARDS = sorted(SHIPPED.glob("*.toml"))


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.stem)
def test_a_card_is_whole(path: Path) -> None:
    card = read_card(path)
    servers.load(card.engine.server)
    for setting in (card.window, card.slots, card.sampling):
        assert setting.source, "each setting says where it came from"
    filled = [fill(word, {"location": "L", "port": "1", "window": "2", "name": "N"}) for word in card.start.command]
    assert not [word for word in filled if "{" in word]
    for part in card.start.parts:
        assert all(piece in card.start.command for piece in part.argument.split()), part.argument


def test_every_kind_of_server_has_a_card() -> None:
    assert {read_card(path).engine.server for path in CARDS} == set(servers.names()) - {"attach"}


def test_an_unknown_field_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    path.write_text(CARDS[0].read_text() + '\n[extra]\ncolour = "red"\n')
    with pytest.raises(WrongUse, match="extra"):
        read_card(path)


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    card = read_card(next(path for path in CARDS if "tensorfold" in path.stem))
    with pytest.raises(WrongUse, match="tensorfold-native"):
        ManagedServer(card, servers.load("tensorfold"), tmp_path / "log").start()
