"""The measuring run: server, instrument check, probes, contract, guarded parts, score; resumable after a kill."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from homestretch.lab import contract as contracts
from homestretch.lab import draftcount, hub, instrument, machine, parts, prompts, servers, tokenizing
from homestretch.lab.client import Target, call, try_json
from homestretch.lab.context import Context, Retry
from homestretch.lab.errors import LabError, ServerFailed, Undecided, WrongUse
from homestretch.lab.guard import Guard
from homestretch.lab.options import Options
from homestretch.lab.probes import Probed, Prober
from homestretch.lab.progress import Progress
from homestretch.lab.records import RunFolder
from homestretch.lab.score import score
from homestretch.lab.seen import setting
from homestretch.lab.servers import ManagedServer, ServerKind
from homestretch.lab.tokenizing import TokenCounter
from homestretch.lab.types import Card, Contract, Result, Sourced


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The run's folder and result; failures: part -> why it has no numbers. exit_code: 0 all done, 1 a part failed, 3 undecided."""

    folder: Path
    result: Result
    failures: dict[str, str]

    @property
    def exit_code(self) -> int:
        states = {part.state for part in self.result.parts.values()}
        return 1 if states & {"invalid", "missing"} else 3 if "undecided" in states else 0


@dataclass(kw_only=True)
class Served:
    """The server under measurement."""

    target: Target
    kind: ServerKind
    model: str
    managed: ManagedServer | None
    log: Path | None
    pids: list[int]

    @property
    def guarded(self) -> Sourced:
        """Whether foreign load can be told from the server's own, and why."""
        if not self.target.local():
            return Sourced(value=False, source="the address: another machine")
        if not self.pids:
            return Sourced(value=False, source="the process that listens on its port cannot be seen from this account")
        return Sourced(value=True, source="the process that listens on its port, and all below it")


def measure(options: Options, *, progress: Progress | None = None, retry: Retry | None = None) -> Measured:
    """Measure what the options say into `options.output`.

    WrongUse for options that cannot be used; ServerFailed when the server cannot be reached. A part that fails or stays undecided
    does not stop the others; its reason is in the result. With `resume`, steps that are in the raw files are not run again.
    """
    options = _complete(options)
    card = contracts.read_card(options.card) if options.card else None
    folder = _folder(options)
    old = folder.contract() if (folder.path / "contract.json").exists() else None
    if old is not None:
        options, card = _as_before(options, old), old.card
    with ExitStack() as stack:
        stack.enter_context(folder.held())
        for cut in folder.recover():
            folder.log(f"recovered: {cut}")
        say = stack.enter_context(progress or Progress())
        served = stack.enter_context(_serve(options, card, folder, say))
        _check_instrument(folder, say)
        unseen = served.target.local() and not served.guarded.value  # its own load would be taken for foreign
        guard = stack.enter_context(Guard(folder.path, lab_pid=os.getpid(), allow_load=options.allow_load or unseen))
        guard.server(served.pids)
        tokens = _tokens(options, card, served)
        make = _Maker(folder=folder, served=served, tokens=tokens, guard=guard, say=say, retry=retry or Retry(), options=options)
        contract = old if old is not None else make.contract(card)
        if old is None:
            folder.write_contract(contract)
            if options.contract is not None:
                options.contract.write_bytes((folder.path / "contract.json").read_bytes())
        folder.log(f"{'resumed' if old else 'began'}: {', '.join(folder.parts())} against {served.kind.name}")
        failures = make.parts(contract)
    result = score(folder.path)
    return Measured(folder=folder.path, result=result, failures=failures)


def _complete(options: Options) -> Options:
    """Parts resolved; what is missing or contradicts itself refused."""
    if options.card is None and not options.base_url and not options.resume:
        raise WrongUse("nothing to measure: give a card (a file, or the name of one that ships) or --base-url http://HOST:PORT/v1")
    wanted = options.parts or ("speed",)
    options = replace(options, parts=parts.select(",".join(wanted)))
    if options.warmups < 0 or min(options.runs, options.prefill_runs, options.conc_rounds, options.ctx_runs, options.at_once) < 1:
        raise WrongUse("--runs, --prefill-runs, --conc-rounds, --ctx-runs and --at-once must be at least 1, --warmups at least 0")
    if min(options.max_tokens, options.conc_max_tokens, options.ctx_max_tokens) < 2:
        raise WrongUse("--max-tokens, --conc-max-tokens and --ctx-max-tokens must be at least 2")
    if min((*options.conc_levels, *options.prefill_depths, *options.ctx_depths), default=1) < 1:
        raise WrongUse("--conc-levels, --prefill-depths and --ctx-depths take whole numbers from 1 up")
    return options


def _as_before(options: Options, old: Contract) -> Options:
    """Options of a resumed run: what its contract says goes before what is given now; WrongUse where the prompts are others."""
    digest = prompts.read(options.prompts)[1]
    if digest != old.hashes.get("prompts", digest):
        raise WrongUse("--resume: the prompts are not those the run began with; give the same --prompts file")
    attached = "--base-url" in old.command
    return replace(
        options,
        base_url=options.base_url or (old.base_url if attached else ""),
        model=old.model,
        allow_load=bool(setting(old, "guard.allow_load", options.allow_load)),
        at_once=int(str(setting(old, "measure.at_once", options.at_once))),
    )


def _folder(options: Options) -> RunFolder:
    if not options.resume:
        return RunFolder.create(options.output)
    if not options.output.exists():
        raise WrongUse(f"--resume: there is no {options.output}; without --resume it is begun anew")
    return RunFolder(options.output)


@contextmanager
def _serve(options: Options, card: Card | None, folder: RunFolder, say: Progress) -> Iterator[Served]:
    """The server: attached to by --base-url, or started by its card and stopped at the end."""
    api_key = contracts.text_of(options.api_key_file, "--api-key-file")
    kind = servers.load(card.engine.server if card is not None else "attach")
    if options.base_url:
        target = Target(url=options.base_url.rstrip("/"), api_key=api_key)
        raw = call(target, "/models", timeout_s=15.0)
        if not raw.status:
            raise ServerFailed(f"no server answers at {options.base_url}: {raw.error}; start it first, or check the address")
        if raw.status == 404 and not target.url.endswith("/v1"):
            raise ServerFailed(f"{target.url}/models is not there (404); give the OpenAI base, usually {target.url}/v1")
        pid = machine.listener(target.port) if target.local() else None
        model = options.model or (card.model.id if card else "") or _only_model(target)
        yield Served(target=target, kind=kind, model=model, managed=None, log=options.server_log, pids=[pid] if pid else [])
        return
    if card is None:
        raise WrongUse("nothing to measure: give a card or --base-url")
    log = folder.path / "server.log"
    managed = ManagedServer(card, kind, log, api_key=api_key, say=say.say)
    try:
        target = managed.start(options.server_ctx)
        yield Served(
            target=target,
            kind=kind,
            model=options.model or card.model.id,
            managed=managed,
            log=log,
            pids=[managed.pid] if managed.pid else [],
        )
    finally:
        managed.stop()


def _only_model(target: Target) -> str:
    """The one model a server lists; WrongUse when it lists several or none."""
    answer = try_json(target, "/models")
    listed = [str(entry.get("id")) for entry in answer.get("data", [])] if isinstance(answer, dict) else []
    if len(listed) != 1:
        raise WrongUse(f"the server lists {len(listed)} models ({', '.join(listed[:8])}); name one with --model")
    return listed[0]


def _check_instrument(folder: RunFolder, say: Progress) -> None:
    path = folder.path / "instrument.json"
    if instrument.read(path) is None:
        instrument.write(path, instrument.check(say.say))


def _tokens(options: Options, card: Card | None, served: Served) -> TokenCounter:
    """The served tokenizer: its own route, a tokenizer.json of the options or the card, else usage alone."""
    if options.tokenizer_json is not None:
        return tokenizing.by_file(options.tokenizer_json)
    by_route = tokenizing.by_route(served.target, served.model)
    if by_route is not None:
        return by_route
    if card is not None and card.model.tokenizer_json and Path(card.model.tokenizer_json).expanduser().exists():
        return tokenizing.by_file(Path(card.model.tokenizer_json).expanduser())
    return tokenizing.nothing()


@dataclass(kw_only=True)
class _Maker:
    """Makes the contract, then runs the parts under it."""

    folder: RunFolder
    served: Served
    tokens: TokenCounter
    guard: Guard
    say: Progress
    retry: Retry
    options: Options

    def context(self, part: str, contract: Contract, probed: Probed | None = None) -> Context:
        if not self._begun:  # after a resume, go on behind the nonces that recorded and unrecorded requests can have used
            used = sum(path.read_bytes().count(b"\n") for path in self.folder.path.glob("requests-*.jsonl"))
            self.tokens.begin(contract.run, used + (0 if not used else 16 if self.tokens.counts else 64))
            self._begun = True
        context = Context(
            part=part,
            contract=contract,
            target=self.served.target,
            folder=self.folder,
            tokens=self.tokens,
            guard=self.guard,
            progress=self.say,
            retry=self.retry,
            at_once=self.options.at_once,
            server=self.served.managed,
            data=self.options.data,
            prompts=prompts.read(self.options.prompts)[0],
            drafts=None if part == "probe" else draftcount.source(self.served.kind, self.served.target, self.served.log),
        )
        context.stream_options = dict(setting(contract, "probe.stream_options", {"include_usage": True}))  # type: ignore[call-overload]
        context.system_role = bool(setting(contract, "prompt.system_role", True))
        context.builder = prompts.Builder(*self._measure(context))
        return context

    def _measure(self, context: Context):  # type: ignore[no-untyped-def]
        """How the whole prompt's length is found for a user message: counted, or read from the usage of a request."""

        sample = context.nonce()  # every nonce counts the same

        def count(user: str) -> int | None:
            template = setting(context.contract, "prompt.template_tokens", self._template)
            chat = prompts.messages(sample, user, system=context.system_role)
            counts = [self.tokens.count(message["content"]) for message in chat]
            return None if None in counts else sum(c for c in counts if c is not None) + int(str(template or 0))

        def ask(user: str) -> int | None:
            body = context.body(messages=context.chat(user), max_tokens=1, stream=False)
            answer = try_json(self.served.target, "/chat/completions", body, timeout_s=self.retry.total_s)
            usage = answer.get("usage") if isinstance(answer, dict) else None
            tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
            return tokens if isinstance(tokens, int) else None

        return (count, self.tokens.source) if self.tokens.counts else (ask, "usage")

    _template: int = 0
    _begun: bool = False

    def contract(self, card: Card | None) -> Contract:
        """Ask and resolve everything; the parts' requests come after it is written."""
        served, options = self.served, self.options
        log = served.managed.log_text() if served.managed else _text(served.log)
        facts = served.kind.facts(served.target, served.model, log)
        settings = contracts.server_settings(options, card, facts)
        options = self.options = contracts.fit_window(options, settings["server.window"].value)
        settings |= contracts.request_settings(options, card, served.kind)
        settings["server.guarded"] = served.guarded
        of_parts, hashes = contracts.part_settings(options)
        command = served.managed.command if served.managed else []
        hashes |= contracts.file_hashes(options, card, command, self.say.say)
        contracts.refuse_other_weights(hashes)
        if card is not None:
            compared = hub.verdict(hashes, card.model.repository, card.model.revision)
            settings["weights.hub"] = Sourced(value=compared, source="the hub's public listing")
        base = contracts.make(
            options=options,
            card=card,
            base_url=served.target.url,
            model=served.model,
            settings={**settings, **of_parts},
            hashes=hashes,
        )
        context = self.context("probe", base)
        prober = Prober(context, settings["server.window"].value)
        prober.on_overhead = self._set_template
        found = prober.run(self.say.say)
        settings["prompt.tokenizer"] = Sourced(
            value=self.tokens.source if self.tokens.counts else "usage",
            source="--tokenizer-json" if options.tokenizer_json else "the server" if self.tokens.counts else "nothing else counts",
        )
        settings |= found.settings
        settings |= {f"request.{name}": Sourced(value=value, source="probe") for name, value in found.request.items()}
        return msgspec.structs.replace(base, settings={**base.settings, **settings})

    def _set_template(self, tokens: int) -> None:
        self._template = tokens

    def parts(self, contract: Contract) -> dict[str, str]:
        """Every part of the contract in turn; the reasons of those that failed."""
        failures = {}
        names = self.folder.parts()
        for name in names:
            self.say.plan(name, len(parts.load(name).plan(contract)))
        for name in names:
            try:
                if self.served.managed is not None and self.served.managed.pid is None and name != "fit":
                    self.say.say("the server is gone; starting it again")
                    self.served.target = self.served.managed.start()
                    self.guard.server([self.served.managed.pid] if self.served.managed.pid else [])
                parts.load(name).run(self.context(name, contract))
            except (ServerFailed, Undecided) as error:
                failures[name] = str(error)
                self.folder.log(f"part {name}: {error}")
                self.say.note(f"{name}: {error}")
            except LabError as error:
                self.folder.log(f"part {name}: {error}")
                raise
        return failures


def _text(path: Path | None) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path is not None and path.exists() else ""
