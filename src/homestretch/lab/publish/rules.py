"""What must not leave the machine, as patterns: each with its name, its placeholder, and what it leaves alone."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass

from homestretch.lab.publish.language import words

SEPARATOR = r"(?:\\{0,4}/|\\{1,4})"  # a slash or backslash, as it stands or escaped in JSON once or twice
NAME = r"[^\s/\\\"'`<>|:;,(){}\[\]$]+"
REST = r"[^\s\"'`<>|;,(){}\[\]]*"
LOCAL_ROOTS = "mnt|media|data|srv|scratch|workspace|workspaces|work|tmp|private|Volumes|nas|storage|export|net|pool|mounts?"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A kind of private text. replace: match -> its placeholder, or the match itself where it is harmless."""

    name: str
    pattern: re.Pattern[str]
    replace: Callable[[re.Match[str]], str]


def fixed(placeholder: str) -> Callable[[re.Match[str]], str]:
    return lambda _: placeholder


def keep_head(placeholder: str) -> Callable[[re.Match[str]], str]:
    """Keeps group "head" and puts the placeholder in the place of the rest."""
    return lambda match: match["head"] + placeholder


def local(match: re.Match[str]) -> str:
    """A local path becomes $LOCAL and its last piece, when that is a plain file name."""
    last = re.split(r"[\\/]+", match[0].rstrip("\\/"))[-1].rstrip(".")
    return f"$LOCAL/{last}" if re.fullmatch(r"[\w.+-]+\.[A-Za-z][\w]{1,11}", last) else "$LOCAL"


def ipv4(match: re.Match[str]) -> str:
    try:
        address = ipaddress.IPv4Address(match[0])
    except ValueError:
        return match[0]
    return match[0] if address.is_loopback or address.is_unspecified else "$IP"


def ipv6(match: re.Match[str]) -> str:
    text = match[0]
    if text.count(":") < 3 and not text.lower().startswith(("fe80", "fd", "fc", "2001")):
        return text
    try:
        address = ipaddress.IPv6Address(text.split("%")[0])
    except ValueError:
        return text
    return text if address.is_loopback or address.is_unspecified else "$IP"


def secret(match: re.Match[str]) -> str:
    """A value after a word such as token: a key when it looks like one, left alone when it is a word or a number."""
    value = match["value"]
    if value.startswith(("$", "<", "{")) or set(value) <= set("*xX.…-"):
        return match[0]
    strong = re.search(r"pass|secret|api|credential", match["head"], re.IGNORECASE) is not None
    mixed = re.search(r"[A-Za-z]", value) and re.search(r"\d", value)
    return match["head"] + "$KEY" if (strong and len(value) >= 4) or (len(value) >= 12 and mixed) else match[0]


def named(match: re.Match[str]) -> str:
    """A value after `hostname`, `user` and the like; words that name nobody stay."""
    if match["value"].lower() in HARMLESS or match["value"].startswith(("$", "<", "{")):
        return match[0]
    return match["head"] + ("$HOST" if re.search(r"host|node|computer", match["head"], re.IGNORECASE) else "$USER")


def kernel(match: re.Match[str]) -> str:
    """The host name in `uname -a`; words such as "kernel" stay."""
    return match[0] if match["value"].lower() in HARMLESS else match["head"] + "$HOST"


def at_host(match: re.Match[str]) -> str:
    return match[0] if re.fullmatch(r"[0-9a-f]{7,40}", match["host"]) else "$USER@$HOST"


HARMLESS = words("harmless")

RULES: tuple[Rule, ...] = (
    Rule(
        name="private key",
        pattern=re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.|\n)*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"),
        replace=fixed("$KEY"),
    ),
    Rule(
        name="token or key",
        pattern=re.compile(
            r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}|"
            r"AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|nvapi-[\w-]{16,}|pypi-[\w-]{30,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*|npm_[A-Za-z0-9]{30,})"
        ),
        replace=fixed("$KEY"),
    ),
    Rule(
        name="token or key",
        pattern=re.compile(r"(?P<head>\b(?:Bearer|Basic)\s+)(?P<value>[A-Za-z0-9_.~+/=-]{8,})"),
        replace=keep_head("$KEY"),
    ),
    Rule(
        name="token or key",
        pattern=re.compile(
            r"(?P<head>\b\w*(?:api[_-]?key|access[_-]?key|auth[_-]?key|token|secret|passwd|password|passphrase|credential)\b\\*[\"']?\s*[:=]\s*\\*[\"']?)"
            r"(?P<value>[^\s\"'\\,;}&]{4,})",
            re.IGNORECASE,
        ),
        replace=secret,
    ),
    Rule(
        name="token or key",
        pattern=re.compile(r"(?P<head>\bssh-(?:rsa|ed25519|dss)\s+)(?P<value>[A-Za-z0-9+/=]{20,}(?:\s+\S+@\S+)?)"),
        replace=keep_head("$KEY"),
    ),
    Rule(name="token or key", pattern=re.compile(r"(?P<head>://)(?P<value>[^/\s:@]+:[^/\s@]+)(?=@)"), replace=keep_head("$KEY")),
    Rule(
        name="home folder",
        pattern=re.compile(rf"(?<![\w.$])(?:[A-Za-z]:)?{SEPARATOR}(?:var{SEPARATOR})?(?:home|Users){SEPARATOR}{NAME}"),
        replace=fixed("$HOME"),
    ),
    Rule(name="home folder", pattern=re.compile(rf"(?<![\w.$/]){SEPARATOR}root(?![\w.-])"), replace=fixed("$HOME")),
    Rule(name="home folder", pattern=re.compile(r"(?<![\w.$/\\~])~[a-z_][a-z0-9_-]*(?=/)"), replace=fixed("$HOME")),
    Rule(name="local path", pattern=re.compile(rf"\bfile:/{{2,4}}(?!\$){REST}"), replace=fixed("$LOCAL")),
    Rule(name="local path", pattern=re.compile(rf"(?<![\w.$:/\\-]){SEPARATOR}(?:{LOCAL_ROOTS}){SEPARATOR}{REST}"), replace=local),
    Rule(name="local path", pattern=re.compile(rf"(?<!\w)[A-Za-z]:\\{{1,4}}(?![nrtbfu\"\\]?\s){NAME}{REST}"), replace=local),
    Rule(
        name="local path", pattern=re.compile(r"(?<![\w\\])\\{2,4}[A-Za-z][\w.-]+\\{1,2}[\w$.-]+(?:\\{1,2}[\w.-]+)*"), replace=local
    ),
    Rule(
        name="e-mail address",
        pattern=re.compile(r"[\w.+-]+@[A-Za-z0-9][\w-]*(?:\.[\w-]+)*\.[A-Za-z]{2,}\b(?!/)"),
        replace=fixed("$EMAIL"),
    ),
    Rule(
        name="account and host",
        pattern=re.compile(
            r"(?<![\w/.-])[a-z_][\w-]{0,31}@(?P<host>[A-Za-z][\w-]*)(?=:[~/\w]|[ :~\w/]{0,40}[$#](?:\s|$)|\s*$|['\"\s])"
        ),
        replace=at_host,
    ),
    Rule(
        name="host name",
        pattern=re.compile(
            r"(?P<head>\b(?:hostname|host[_-]name|nodename|node[_-]name|computer[_-]?name)\b\\*[\"']?\s*(?:[:=]|is)\s*\\*[\"']?)"
            r"(?P<value>[A-Za-z][\w.-]*)",
            re.IGNORECASE,
        ),
        replace=named,
    ),
    Rule(
        name="account name",
        pattern=re.compile(
            r"(?P<head>\b(?:user(?:name)?|user[_-]name|login|logname|account|owner|sudo_user)\b\\*[\"']?\s*[:=]\s*\\*[\"']?)(?P<value>[A-Za-z_][\w.-]*)",
            re.IGNORECASE,
        ),
        replace=named,
    ),
    Rule(
        name="host name",
        pattern=re.compile(r"(?P<head>\b(?:Linux|Darwin) )(?P<value>[\w.-]+)(?= \d+\.\d+)"),
        replace=kernel,
    ),
    Rule(
        name="host name",
        pattern=re.compile(
            r"(?<![\w.@-])[A-Za-z0-9][\w-]*(?:\.[\w-]+)*\.(?:local|lan|home|internal|intranet|localdomain|fritz\.box|ts\.net)\b(?![\w(.-])"
        ),
        replace=fixed("$HOST"),
    ),
    Rule(
        name="hardware address",
        pattern=re.compile(r"(?<![0-9A-Fa-f:-])(?:[0-9A-Fa-f]{2}([:-]))(?:[0-9A-Fa-f]{2}\1){4}[0-9A-Fa-f]{2}(?![0-9A-Fa-f:-])"),
        replace=fixed("$MAC"),
    ),
    Rule(
        name="network address",
        pattern=re.compile(r"(?<![\w.-])(?<!==)(?<!version )(?<!Version )(?<!release )\d{1,3}(?:\.\d{1,3}){3}(?![\w-]|\.\d)"),
        replace=ipv4,
    ),
    Rule(
        name="network address",
        pattern=re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?:%\w+)?(?![\w:])"),
        replace=ipv6,
    ),
    Rule(
        name="serial number",
        pattern=re.compile(
            r"(?P<head>\b(?:serial(?:[ _-]?(?:number|no))?|s/n|asset[ _-]?tag|machine[ _-]?id|boot[ _-]?id|system[ _-]?uuid|uuid)"
            r"\.?\\*[\"']?\s*[:=#]\s*\\*[\"']?)"
            r"(?P<value>[A-Za-z0-9][A-Za-z0-9-]{5,})",
            re.IGNORECASE,
        ),
        replace=keep_head("$SERIAL"),
    ),
    Rule(
        name="serial number",
        pattern=re.compile(r"\b(?:GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"),
        replace=fixed("$SERIAL"),
    ),
)

# A text without any of these cannot match a rule above; most texts have none, and are passed over in one look.
TRIGGER = re.compile(
    r"[/\\@:=~#]|\d\.\d|earer |asic |inux |arwin |\bis\b|\.(?:local|lan|home|int|fritz|ts\.)|GPU-|MIG-|hf_|sk-|gh[pousr]_|"
    r"github_pat|glpat|xox|AKIA|AIza|nvapi|pypi-|eyJ|npm_|ssh-|BEGIN|[0-9A-Fa-f]{2}-[0-9A-Fa-f]{2}-",
    re.IGNORECASE,
)

# A power reading tells about a household's meter and hardware limits; the site does not publish any.
POWER = re.compile(
    r"\b\d+(?:[.,]\d+)?\s?(?:mW|W|kW|kWh|Wh|watts?|milliwatts?|joules?)\b(?![\w-])"
    r"|\bpower[ _.-]?(?:draw|usage|reading|limit|average|instant|now|w|mw|watts?)\b\\*[\"']?\s*[:=,]?\s*\\*[\"']?\d"
    r"|\b(?:watts?|wattage|energy_j|joules)\b\\*[\"']?\s*[:=]\s*\d",
    re.IGNORECASE,
)
POWER_CASED = re.compile(r"\b\d+(?:[.,]\d+)?\s?w\b(?![\w-])")  # "5 w" in lower case alone is prose or code, not a reading
