"""Masks credentials in commands, messages and quoted source lines, so that captures and reports can be shared.

Three things are masked: values whose own form is that of a credential (``hf_…``, a JWT, the password in a URL), values
behind a name that can only be a credential's (``--api-key``, ``WANDB_API_KEY``, ``wandb.api_key``), and random-looking
values behind a name that may be one (``--my-token``, ``--key``). Numbers, switches, references to variables and
paths to files stay. Every pattern begins at a boundary that its own characters exclude, so the time is linear.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

MASK = "***"

_Tier: TypeAlias = Literal["sure", "maybe", "none"]

# Forms that nothing else has. The longest run of their characters is taken, then its length is checked.
_PREFIXED = re.compile(
    r"(?<![\w.\-])(?:hf_|api_org_|sk-|sk_live_|rk_live_|gh[oprsu]_|github_pat_|glpat-|xox[abeoprs]-|AKIA|ASIA|AIza|"
    r"ya29\.|eyJ|npm_|pypi-|dckr_pat_|nvapi-|gsk_|r8_|dop_v1_|SG\.|xai-|pk-lf-|dapi(?=[0-9a-f]{32}))(?P<rest>[\w.\-]+)",
    re.ASCII,
)
_OPENAI = re.compile(r"(?<![\w.\-])sk-(?:proj|ant|svcacct|admin)-\w{16}[\w\-]*", re.ASCII)  # also one without a digit
_BOT = re.compile(  # of Telegram: a number and a word; of Discord: three words
    r"(?<![\w.\-])(?:(?:bot)?\d{6,12}:[\w\-]{30,64}|[MNO][\w\-]{20,30}\.[\w\-]{6}\.[\w\-]{25,50})(?![\w.\-])", re.ASCII
)
_WEBHOOK = (
    r"((?:hooks\.slack\.com/(?:services|workflows|triggers)|discord(?:app)?\.com/api/(?:v\d{1,2}/)?webhooks|"
    r"\.webhook\.office\.com/webhookb2|/open-apis/bot/v2/hook)/)[^\s\"'?#]+"
)
_BEARER = re.compile(r"(?<!\w)(Bearer|Basic) {1,3}([\w.~+/=\-]+)", re.ASCII | re.IGNORECASE)
_PRIVATE_KEY = r"(-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----)[^-\"']*(-----END)?"
_URL_PASSWORD = r"(://[^\s/:@]*:)[^\s/]+@"
_URL_USER = r"://([^\s/:@]+)@"
_LOGIN = re.compile(r"(?<![^\s=,\"'])([A-Za-z][\w.+\-]{0,63}:)([^\s/:@\"',]{1,256})@(?!sha\d)(?=[\w\[])", re.ASCII)

# A name and what parts it from its value: an equals sign or a colon, perhaps behind a closing quote and bracket, or,
# after an option, a space.
_NAME = re.compile(r"(?<![\w.\-])([\w.\-]+)([\"']?\]?\s{0,3}(?::(?![:/])|=(?!=))\s{0,3}| {1,3}(?=[^\s\-]))", re.ASCII)
_QUOTED = re.compile(r"([rbfu]{0,2}([\"']))((?:(?!\2)[^\\\n]|\\.)*)\2", re.IGNORECASE)
_BEGIN = re.compile(r"[\"']?([^\s,;&\"'(){}\[\]<>=]{1,256})")  # of a value without quotes: enough to judge it by
_BARE = re.compile(r"[\"']?[^\s,;&\"'(){}\[\]<>]+")
_COOKIE = re.compile(r"[^\s;\"'=]+=[^\s;\"']*(?:; ?[^\s;\"'=]+=[^\s;\"']*)*")
_ANNOTATION = re.compile(
    r"(?:[A-Za-z_][\w.\[\]| ,\"']{0,64}?|\"[^\"\n]{1,64}\" {0,3}|'[^'\n]{1,64}' {0,3})=(?!=)\s{0,3}"
)
# A tuple, a list, or what takes a user and a password.
_GROUP = re.compile(r"(?:\w{0,64}(?:Auth|Credentials?))?[(\[][^)\]\n]{0,256}")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CAMEL = r"(?<=[a-z])(?=[A-Z])"
_PARTS = r"[_\-.]+"
_ALNUM = r"[A-Za-z0-9]{16,}"

_SECRETS = _words(
    "secret password passwd passphrase credential apikey authkey accesskey secretkey privatekey authtoken accesstoken"
    " apitoken hftoken authorization"
)
_ALONE = _words("token auth pwd pw pass bearer otp totp pin")  # secrets only where they are the whole name
_PASSES = _words("pass pwd pw")
_ACCOUNTS = _words("db database smtp imap mail email ftp proxy http https redis mysql postgres pg mongo root")
_OWNERS = _words(  # a token or key of one of these is a credential; an eos_token or a sort_key is none
    "api access secret private auth oauth oauth2 bearer session security refresh id jwt personal login user account"
    " service client app application admin master signing encryption deploy license subscription storage registry hub"
    " hf huggingface wandb comet neptune clearml mlflow databricks dagshub aws azure gcp google s3 minio github gh"
    " gitlab git openai anthropic cohere replicate together groq mistral nvidia ngc slack discord telegram bot pypi npm"
    " docker kaggle sentry webhook sas pat ssh"
)
_ABOUT = _words(  # a name that ends so is about a credential and holds none
    "file path dir folder name env var variable len length size num count type field policy dim index idx url uri"
    " column id ids ttl expiry timeout mode class min max prob rate ratio level jar"
)
_SWITCHES = _words("use no has is require requires disable enable with skip needs allow")
_IN_URLS = _words("token key sig signature credential code auth pass password secret apikey")
_NOTHING = _words("true false none null yes no on off auto default required optional")
_PATH = r"(?:\.{1,2}|~\w*|/(?:home|root|run|etc|var|tmp|mnt|usr|opt|data|srv|workspace|Users))/"
_HEX = r"[0-9a-f]+"
_NUMBER = r"(?i)[+-]?\d[\d_]{0,11}(?:\.\d+)?(?:e[+-]?\d+)?"


def mask_command(words: Sequence[str]) -> tuple[str, ...]:
    """Return a command's words with every credential replaced by ``MASK``; an option's value may be the next word."""
    return tuple(_mask_word(word, before) for word, before in zip(words, ("", *words), strict=False))


def mask_text(text: str) -> str:
    """Return a message, a command in one line or other plain text with every credential replaced by ``MASK``."""
    return _mask_assigned(_mask_forms(text), code=False)


def mask_code(line: str) -> str:
    """Return source code in which credentials that stand in it as literals are replaced by ``MASK``."""
    return _mask_assigned(_mask_forms(line), code=True)


def mask_values(value: object, name: str = "") -> object:
    """Return decoded JSON with every credential in its strings and behind its keys replaced by ``MASK``."""
    if isinstance(value, dict):
        return {key: mask_values(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [mask_values(inner, name) for inner in value]
    if isinstance(value, bool) or value is None or not _is_secret(name, str(value)):
        return mask_text(value) if isinstance(value, str) else value
    return MASK


def _mask_word(word: str, before: str) -> str:
    name, equals, value = word.partition("=")
    if equals and not any(c.isspace() or c in "?&:" for c in name) and _is_secret(name, value):
        return f"{name}={MASK}"
    if before.startswith("-") and "=" not in before and not word.startswith("-") and _is_secret(before, word):
        return MASK
    return mask_text(word)


def _mask_forms(text: str) -> str:
    text = re.sub(_PRIVATE_KEY, rf"\1{MASK}", text)
    text = re.sub(_URL_PASSWORD, rf"\1{MASK}@", text)
    text = re.sub(_URL_USER, lambda m: f"://{MASK}@" if _is_random(m[1]) else m[0], text)
    text = _LOGIN.sub(rf"\1{MASK}@", text)
    text = _BOT.sub(MASK, _OPENAI.sub(MASK, re.sub(_WEBHOOK, rf"\1{MASK}", text)))
    # An AWS key id has 16 characters after its prefix, every other form has more.
    text = _PREFIXED.sub(lambda m: MASK if len(m["rest"]) >= 16 and _has_digit(m["rest"]) else m[0], text)

    def bearer(found: re.Match[str]) -> str:
        is_token = len(found[2]) >= 8 and (_has_digit(found[2]) or not found[2].islower())
        return f"{found[1]} {MASK}" if is_token else found[0]

    return _BEARER.sub(bearer, text)


def _mask_assigned(text: str, *, code: bool) -> str:
    """Return the text with the values of credentials replaced."""
    pieces, at = [], 0
    while found := _NAME.search(text, at):
        masked, end = _value(found, code=code)
        pieces += [text[at : found.end()], masked]
        at = end
    return "".join((*pieces, text[at:]))


def _value(found: re.Match[str], *, code: bool) -> tuple[str, int]:
    """Return what takes the place of a name's value, and where it ends; nothing, and its begin, for one that stays."""
    text, at, name = found.string, found.end(), found[1]
    by = found[2].strip(" \t\r\n\"']")
    in_url = text[max(found.start() - 1, 0) : found.start()] in ("?", "&") and _parts(name)[-1] in _IN_URLS
    if not (by or name.startswith("-")) or not (in_url or _tier(name) != "none"):
        return "", at
    annotation = _ANNOTATION.match(text, at) if code and by == ":" else None
    start = annotation.end() if annotation else at
    literals = _QUOTED.match(text, start) or (_GROUP.match(text, start) if code else None)
    if literals:

        def literal(one: re.Match[str]) -> str:
            return f"{one[1]}{MASK}{one[2]}" if _is_secret(name, one[3]) else one[0]

        masked = _QUOTED.sub(literal, literals[0])
        return (f"{text[at:start]}{masked}", literals.end()) if masked != literals[0] else ("", at)
    if code:
        return "", at
    return _word(found, in_url=in_url, is_message=by == ":" and not re.search(_PARTS, name))


def _word(found: re.Match[str], *, in_url: bool, is_message: bool) -> tuple[str, int]:
    """Return what `_value` does, of a value without quotes; "invalid token: expected a name" is a message."""
    text, at, name = found.string, found.end(), found[1]
    begin = _BEGIN.match(text, at)
    if begin is None or not (_is_secret(name, begin[1]) or (in_url and not _is_harmless(begin[1]))):
        return "", at
    whole = _COOKIE.match(text, at) if _parts(name)[-1] == "cookie" else None
    if whole is None and is_message and not _is_random(begin[1], 8):
        return "", at
    whole = whole or _BARE.match(text, at)
    return MASK, whole.end() if whole else at


def _is_secret(name: str, value: str) -> bool:
    """Return whether what stands behind a name is a credential."""
    tier = _tier(name)
    if tier == "none" or _is_harmless(value):
        return False
    if tier == "maybe":
        return _is_random(value)
    return not (re.fullmatch(_NUMBER, value) and _parts(name)[-1] in {"token", "key", "auth"})


def _tier(name: str) -> _Tier:
    parts = _parts(name)
    last = parts[-1]
    if last in _ABOUT and not {"access", "key"} <= set(parts):  # AWS_ACCESS_KEY_ID
        return "none"
    if parts[0] in _SWITCHES:
        return "maybe"
    if not _SECRETS.isdisjoint(parts) or last == "cookie" or (len(parts) == 1 and last in _ALONE):
        return "sure"
    if last in {"token", "key", *_PASSES} or {"access", "key"} <= set(parts):
        owners = _OWNERS | _ACCOUNTS if last in _PASSES else _OWNERS
        return "maybe" if owners.isdisjoint(parts[:-1]) and "access" not in parts else "sure"
    if last == "signature" and not {"amz", "goog"}.isdisjoint(parts):
        return "sure"
    return "maybe" if last in {"api", "auth", "p", "pat", "sig", "signature"} else "none"


def _parts(name: str) -> list[str]:
    """Return the lower-case words of the last part of a dotted name, plurals without their s."""
    last = name.strip("-.+~_\"'").rpartition(".")[2]
    words = [w.lower() for w in re.split(_PARTS, re.sub(_CAMEL, "_", last) if not last.isupper() else last) if w]
    return [
        w.removesuffix("s") if w.removesuffix("s") in {*_SECRETS, "token", "key", "cookie"} else w for w in words
    ] or [""]


def _is_harmless(value: str) -> bool:
    """Return whether a value is a switch, a count, a reference to a variable, a path or a placeholder."""
    value = value.strip("\"'")
    if not value or (len(value) <= 2 and value.isdecimal()):
        return True
    return value.lower() in _NOTHING or value[0] in "$<@" or value == MASK or bool(re.match(_PATH, value))


def _is_random(value: str, least: int = 16) -> bool:
    """Return whether a value holds a run of letters and digits that no word or number looks like."""
    if least < 16:
        return len(value) >= least and _has_digit(value) and any(map(str.isalpha, value))
    for run in re.findall(_ALNUM, value):
        if sum(a.isdigit() != b.isdigit() for a, b in pairwise(run)) >= 4:  # letters and digits take turns
            return True
        if _has_digit(run) and re.fullmatch(_HEX, run):
            if not run.isdigit():
                return True
        elif _has_digit(run) and len(run) >= 20 and run != run.lower() and run != run.upper():
            return True
    return False


def _has_digit(text: str) -> bool:
    return any(map(str.isdigit, text))
