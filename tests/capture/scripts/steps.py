"""Many ways to make steps: steps.py KIND."""

import subprocess
import sys

import torch

NUM_STEPS = 400
torch.set_num_threads(1)


def gan():
    generator, critic = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
    slow = torch.optim.Adam(generator.parameters())
    fast = torch.optim.SGD(critic.parameters(), lr=0.1)
    for _ in range(NUM_STEPS):
        for _ in range(3):
            fast.zero_grad()
            critic(generator(torch.randn(4, 8)).detach()).mean().backward()
            fast.step()
        slow.zero_grad()
        critic(generator(torch.randn(4, 8))).mean().backward()
        slow.step()


def in_backward():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    for _ in range(NUM_STEPS):
        model(torch.randn(4, 8)).mean().backward()


def lbfgs():
    model, x = torch.nn.Linear(8, 1), torch.randn(32, 8)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(NUM_STEPS):
        optimizer.step(closure)


def scaler():
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", growth_interval=1000)
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(4, 8)).mean()
        scaler.scale(loss * (float("inf") if step % 7 == 3 else 1.0)).backward()
        scaler.step(optimizer)  # every seventh is skipped
        scaler.update()


def inference():
    encoder, decoder = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), torch.nn.Linear(8, 1)
    with torch.inference_mode():
        for _ in range(NUM_STEPS):
            decoder(encoder(torch.randn(4, 8)))


def compiled():
    model = torch.compile(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), backend="eager")
    with torch.no_grad():
        for _ in range(NUM_STEPS):
            model(torch.randn(4, 8))
    from torch._dynamo.utils import counters

    print("graphs", counters["stats"]["unique_graphs"], "breaks", sum(counters["graph_break"].values()))


def phases():
    """Each step acts six times and learns; every seventh is followed by an evaluation, the third by a checkpoint."""
    import io

    policy = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(torch.randn(16, 8), batch_size=4)
    for step in range(NUM_STEPS):
        for _ in range(6):
            with torch.no_grad():
                policy(torch.randn(1, 8))
        optimizer.zero_grad()
        policy(torch.randn(64, 8)).mean().backward()
        optimizer.step()
        if step % 7 == 6:
            policy.eval()
            with torch.no_grad():
                for batch in loader:
                    policy(batch)
            policy.train()
        if step % 7 == 2:
            torch.save(policy.state_dict(), io.BytesIO())


def teacher():
    """A frozen module in its evaluation mode all the time, called once a step without gradients."""
    model, frozen = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(NUM_STEPS):
        x = torch.randn(4, 8)
        with torch.no_grad():
            wanted = frozen(x)
        (model(x) - wanted).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def masked():
    """A loss that ignores three of four targets."""
    model, head = torch.nn.Linear(32, 32), torch.nn.Linear(32, 4000)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.01)
    targets = torch.full((4, 32), -100)
    targets[:, ::4] = 7
    for _ in range(NUM_STEPS):
        logits = head(model(torch.randn(4, 32, 32)))
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


def marker():
    import diagnose

    weight = torch.zeros(8)
    for _ in range(NUM_STEPS):
        weight += torch.randn(8)
        diagnose.step()


def cuda():
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        model(torch.randn(32, 64, device="cuda")).mean().backward()
        optimizer.step()


def never():
    print(torch.ones(3).sum())


def in_child():
    busy = "import resource\nwhile resource.getrusage(resource.RUSAGE_SELF).ru_utime < 1.2: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)


def profiled(*, always):
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def one():
        optimizer.zero_grad()
        model(torch.randn(4, 8)).mean().backward()
        optimizer.step()

    for _ in range(0 if always else 17):  # it begins inside the timing window
        one()
    with torch.profiler.profile() as own:
        for _ in range(60):
            one()
    print("own events", len(own.events()) > 1000)
    for _ in range(0 if always else NUM_STEPS):
        one()


KINDS = {
    f.__name__: f
    for f in (
        gan,
        in_backward,
        lbfgs,
        scaler,
        inference,
        compiled,
        marker,
        cuda,
        in_child,
        never,
        phases,
        teacher,
        masked,
    )
}
if sys.argv[1].startswith("profiled"):
    profiled(always=sys.argv[1] == "profiled_always")
else:
    KINDS[sys.argv[1]]()
