"""Style transfer in the classic way: the image is the parameter, and LBFGS calls a closure several times a step."""
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

torch.manual_seed(0)
device = torch.device("cpu")
imsize = 48


def gram_matrix(input):
    a, b, c, d = input.size()
    features = input.view(a * b, c * d)
    G = torch.mm(features, features.t())
    return G.div(a * b * c * d)


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1)
        self.conv3 = nn.Conv2d(16, 32, 3, padding=1)

    def forward(self, x):
        a = F.relu(self.conv1(x))
        b = F.relu(self.conv2(a))
        c = F.relu(self.conv3(F.max_pool2d(b, 2)))
        return [a, b, c]


cnn = Features().to(device).eval()
for p in cnn.parameters():
    p.requires_grad_(False)

style_img = torch.rand(1, 3, imsize, imsize, device=device)
content_img = torch.rand(1, 3, imsize, imsize, device=device)
input_img = content_img.clone().requires_grad_(True)

with torch.no_grad():
    style_targets = [gram_matrix(f) for f in cnn(style_img)]
    content_target = cnn(content_img)[-1]

optimizer = optim.LBFGS([input_img], max_iter=5)

num_steps = 2000
run = [0]
for epoch in range(num_steps):

    def closure():
        with torch.no_grad():
            input_img.clamp_(0, 1)
        optimizer.zero_grad()
        features = cnn(input_img)
        style_score = sum(F.mse_loss(gram_matrix(f), t) for f, t in zip(features, style_targets))
        content_score = F.mse_loss(features[-1], content_target)
        loss = style_score * 1e6 + content_score
        loss.backward()
        run[0] += 1
        if run[0] % 500 == 0:
            print("run {}: style {:4f} content {:4f}".format(run[0], style_score.item(), content_score.item()))
        return loss

    optimizer.step(closure)
