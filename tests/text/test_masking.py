"""Credentials are masked wherever they may stand, and ordinary values stay as they are."""

import io
import shlex

import pytest

from diagnose.errors import InputError
from diagnose.text.masking import mask_code, mask_command, mask_text, mask_values
from diagnose.text.progress import Progress

HF = "hf_" + "aB3dE5fG7hJ9" * 3
SK = "sk-proj-" + "a1B2c3D4e5" * 3
GHP = "ghp_" + "a1B2c3D4e5F6" * 3
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dBjftJeZ4CVPmB92K27uhbUJU1p1r"
AWS = "AKIA" + "IOSFODNN7EXAMPLE"
TELEGRAM = "123456789:AA" + "aB3dE5fG7h" * 3
DISCORD = "MTIz" + "a1B2" * 5 + ".abC-1_." + "a1B2c3D4e5" * 3
HEX = "0a1b2c3d4e5f60718293a4b5c6d7e8f901234567"


@pytest.mark.parametrize(
    ("command", "masked"),
    [
        ("--api-key=abc", "--api-key=***"),
        ("--api_key abc", "--api_key ***"),
        ("--apiKey abc", "--apiKey ***"),
        ("--apikey=a=b==", "--apikey=***"),
        ("--token X", "--token ***"),
        ("-token X", "-token ***"),
        ("--hf-token X --lr 1", "--hf-token *** --lr 1"),
        ("--hub_token=X", "--hub_token=***"),
        ("--push_to_hub_token X", "--push_to_hub_token ***"),
        ("--password 123456", "--password ***"),
        ("--db.password=hunter2", "--db.password=***"),
        ("--passwords a,b", "--passwords ***"),
        ("--client-secret X", "--client-secret ***"),
        ("--aws-secret-access-key wJal/K7", "--aws-secret-access-key ***"),
        ("AWS_ACCESS_KEY_ID=abc", "AWS_ACCESS_KEY_ID=***"),
        ("--env WANDB_API_KEY=abc", "--env WANDB_API_KEY=***"),
        ("--env=WANDB_API_KEY=abc", "--env=WANDB_API_KEY=***"),
        ("HF_TOKEN=abc", "HF_TOKEN=***"),
        ("wandb.api_key=abc", "wandb.api_key=***"),
        ("+logger.wandb.api_key=abc", "+logger.wandb.api_key=***"),
        ("++trainer.logger.token=abc", "++trainer.logger.token=***"),
        ("logger={api_key:abc,name:run}", "logger={api_key:***,name:run}"),
        (f"--model {HF}", "--model ***"),
        (f"-p {SK}", "-p ***"),
        (f"--remote=https://{GHP}@example.org/x", "--remote=https://***@example.org/x"),
        (f"--id {AWS}", "--id ***"),
        (f"--jwt {JWT}", "--jwt ***"),
        (f"--header 'Authorization: Bearer {JWT}'", "--header 'Authorization: Bearer ***'"),
        ("--header 'Authorization: Basic dXNlcjpwYXNz'", "--header 'Authorization: Basic ***'"),
        ("--db postgres://ada:pa:ss@host:5432/x", "--db postgres://ada:***@host:5432/x"),
        ("redis://:pw@host", "redis://:***@host"),
        ("--login ada:hunter2@host", "--login ada:***@host"),
        ("https://h/x?token=abc&page=2", "https://h/x?token=***&page=2"),
        ("https://h/x?page=2&X-Amz-Signature=abc", "https://h/x?page=2&X-Amz-Signature=***"),
        ("https://h/x?X-Amz-Security-Token=abc", "https://h/x?X-Amz-Security-Token=***"),
        ("https://h/x?sv=1&sig=a%2Fb", "https://h/x?sv=1&sig=***"),
        ("https://h/x?key=abc", "https://h/x?key=***"),
        (f"--key {HEX}", "--key ***"),
        (f"--my-token {HEX}", "--my-token ***"),
        (f"--use-auth-token {HEX}", "--use-auth-token ***"),
        ("--pass hunter2 --pw=hunter2 --pwd hunter2", "--pass *** --pw=*** --pwd ***"),
        ("--db-pass hunter2 --smtp_pw=hunter2", "--db-pass *** --smtp_pw=***"),
        ("--cookie sessionid=abc", "--cookie ***"),
        ("--cookies=sessionid=abc", "--cookies=***"),
        ("--header 'Cookie: sessionid=abc; csrf=def'", "--header 'Cookie: ***'"),
        ("--otp 123456 --pin 1234", "--otp *** --pin ***"),
        ("--dapi dapi0123456789abcdef0123456789abcdef", "--dapi ***"),
        ("--openai sk-proj-abcdefghijklmnopqrstuvwx", "--openai ***"),
        ("--comet-api abcDEF123456789abcDEF123456", "--comet-api ***"),
        ("--key 0123456789abcdef", "--key ***"),
        (f"--x {TELEGRAM}", "--x ***"),
        (f"https://api.telegram.org/bot{TELEGRAM}/sendMessage", "https://api.telegram.org/***/sendMessage"),
        (f"--x {DISCORD}", "--x ***"),
        ("--x https://hooks.slack.com/services/T00/B00/XXX", "--x https://hooks.slack.com/services/***"),
        ("--x=https://hooks.slack.com/triggers/T00/1/x", "--x=https://hooks.slack.com/triggers/***"),
        ("--x https://discord.com/api/webhooks/12/ab-C_d", "--x https://discord.com/api/webhooks/***"),
        ("--x https://discordapp.com/api/v10/webhooks/12/ab", "--x https://discordapp.com/api/v10/webhooks/***"),
        ("--x https://a.webhook.office.com/webhookb2/a@b/c", "--x https://a.webhook.office.com/webhookb2/***"),
        ("""--config '{"private_key": "-----BEGIN PRIVATE KEY-----\nMII"}'""", """--config '{"private_key": "***"}'"""),
        ("""--config '{"api_key": "a b", "lr": 1}'""", """--config '{"api_key": "***", "lr": 1}'"""),
        ("--pem=x'-----BEGIN RSA PRIVATE KEY----- abc'", "--pem='x-----BEGIN RSA PRIVATE KEY-----***'"),
    ],
)
def test_credentials_are_masked(command, masked):
    assert mask_command(shlex.split(command)) == tuple(shlex.split(masked))
    assert mask_command(shlex.split(masked)) == tuple(shlex.split(masked))


@pytest.mark.parametrize(
    "command",
    [
        "--tokenizer gpt2",
        "--tokenizer=hf-internal/gpt2-tokenizer",
        "--max-tokens 512",
        "--max_new_tokens=128",
        "--key-dim 64",
        "--password-file x",
        "--token-path /run/secrets/token",
        "--token ~/.cache/token",
        "--token /run/secrets/token",
        "--n-token 5",
        "--token 5",
        "--keys a,b",
        "--key name",
        "--sort-key length_of_the_sentence_v2",
        "--text-key caption",
        "--eos-token </s>",
        "--pad_token=<pad>",
        "--mask-token [MASK]",
        "--tokens-per-batch 4096",
        "--num-key-value-heads 8",
        "--api-key-env WANDB_API_KEY",
        "--api-key $WANDB_API_KEY",
        "wandb.api_key=${oc.env:WANDB_API_KEY}",
        "--use-auth-token",
        "--use-auth-token True",
        "--use_auth_token data.json",
        "--token --lr 1",
        "--auth-token none",
        "-p 8080",
        "-p secret",
        "--secretary ada",
        "--author ada",
        "--keyboard qwerty",
        "--passes 3",
        "--pass 2 --low-pass 4000 --forward-pass fused",
        "--num-pass 1000",
        "--cookie-file x --use-cookies --cookie-jar x",
        "--pin 1 --pin-memory 1024",
        "--api v2 --api-url http://localhost:8000/v1",
        "--url https://discord.com/channels/12/34",
        "--url https://hooks.slack.com/",
        "--at 1699999999:30",
        "--dapi-version dapi_client_version_2_of_three",
        "--model sk-learn-proj-random-forest",
        "--compass north",
        "--bypass x",
        "--monkey 1",
        "--credentials-file x.json",
        "--model meta-llama/Llama-3.1-8B",
        f"--revision {HEX}",
        "--run-id 2024-01-02_03-04-05_abcdef",
        "--task-id run_2024_image_classification",
        "--name hf_tokenizer_path",
        "--model sk-learn-random-forest-classifier",
        "--image pytorch/pytorch:2.6@sha256:0123456789abcdef",
        "--url https://example.org:8080/data@v2/x?page=2&size=10",
        "--remote git@example.org:ada/project.git",
        "--endpoint tcp://10.0.0.1:29500",
        "--signature serving_default",
        "--special-tokens <a>,<b>",
        "--lr 1e-3 data.token_type=bpe model.key_size=64",
        "--prompt 'the basic training of bearer animals'",
        "train.py 3 --epochs=10",
    ],
)
def test_ordinary_values_stay(command):
    assert mask_command(shlex.split(command)) == tuple(shlex.split(command))


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("python train.py --token X --lr 1", "python train.py --token *** --lr 1"),
        ("login failed: password=hunter2 host=db", "login failed: password=*** host=db"),
        ("HTTPError: 401 for url https://h/x?token=abc", "HTTPError: 401 for url https://h/x?token=***"),
        ("invalid token: expected a name", None),
        ("KeyError: 'token'", None),
        ("the attribution window was cut short by --max-mb 500.", None),
    ],
)
def test_messages(text, masked):
    assert mask_text(text) == (masked or text)


@pytest.mark.parametrize(
    ("line", "masked"),
    [
        ('wandb.login(key="0a1b2c3d4e5f60718293a4b5c6d7e8f901234567")', 'wandb.login(key="***")'),
        ("db = connect(host, password='hunter2')", "db = connect(host, password='***')"),
        ('os.environ["HF_TOKEN"] = "abc"', 'os.environ["HF_TOKEN"] = "***"'),
        (f'headers = {{"Authorization": "Bearer {JWT}"}}', 'headers = {"Authorization": "***"}'),
        ('PASSWORD: str = "hunter2"', 'PASSWORD: str = "***"'),
        ("    api_key: Optional[\"str\"] = 'abc'  # ours", "    api_key: Optional[\"str\"] = '***'  # ours"),
        (
            'def f(a: int, token: str | None = "abc", b: str = "def"):',
            'def f(a: int, token: str | None = "***", b: str = "def"):',
        ),
        ('requests.get(url, auth=("ada", "hunter2"))', 'requests.get(url, auth=("***", "***"))'),
        ('auth = HTTPBasicAuth("ada", "hunter2")', 'auth = HTTPBasicAuth("***", "***")'),
        ("auth=(user, 'hunter2'), timeout=3", "auth=(user, '***'), timeout=3"),
        ('passwords = ["hunter2", "hunter3"]', 'passwords = ["***", "***"]'),
        ('key = b"0123456789abcdef"', 'key = b"***"'),
        ('headers = {"Cookie": "sessionid=abc"}', 'headers = {"Cookie": "***"}'),
        ("def f(token: str, name: str = 'x') -> None:", None),
        ("password: str = field(default='x')", None),
        ("token: str | None = None", None),
        ("if token: x = y == 'z'", None),
        ("auth = connect(('localhost', 8080), 'name')", None),
        ("token = tokens[i]", None),
        ("loss = model(x, token=token, key=self.key(x))", None),
        ('password = os.environ["PASSWORD"]', None),
        ('tokenizer(text, pad_token="<pad>", sep_token="[SEP]")', None),
        ("time.sleep(0.004)", None),
    ],
)
def test_source_lines(line, masked):
    assert mask_code(line) == (masked or line)


def test_a_capture_without_a_command():
    assert mask_command(()) == ()


def test_values_of_json_are_masked_and_stay_json():
    given = {"api_key": "abc", "password": 123456, "args": 'api_key="x" lr=1', "ranks": [0, 1], "auth_token": None}
    masked = {"api_key": "***", "password": "***", "args": 'api_key="***" lr=1', "ranks": [0, 1], "auth_token": None}
    assert mask_values(given) == masked


def test_progress_and_errors_show_no_credential():
    stream = io.StringIO()
    Progress(stream=stream).report("tracing python train.py --token abc")
    with Progress(stream=stream).phase("reading https://h/?token=abc"):
        pass
    assert (
        stream.getvalue() == "diagnose: tracing python train.py --token ***\ndiagnose: reading https://h/?token=***\n"
    )
    assert str(InputError("No file s3://ada:abc@h; check the path.")) == "No file s3://ada:***@h; check the path."


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        "a=",
        "token='\\",
        "token=$",
        "://a:",
        "a:a@",
        "eyJ.",
        "?key=$",
        "--key a1",
        "auth=(",
        "auth=('",
        "token: ",
        "Cookie: a=b; ",
        "1:a",
        "M.a",
        "hooks.slack.com/services/",
        "a.webhook.office.com",
    ],
)
def test_long_input_takes_linear_time(unit):
    text = (unit * 100_000)[:100_000]
    assert len(mask_code(text)) <= len(text) + 2
    assert len(mask_text(text)) <= len(text) + 2  # a fraction of a second; with a quadratic pattern minutes
