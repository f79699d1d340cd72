"""Settings of the rivals.

Both have the same networks and sizes, so that they differ in how gradients are clipped alone. Published are: the linear
layers and the 128 units of DP-CGAN, and its batch of 600 rows; C = 1, several steps of the critic for one of the
generator, β₁ = 0.5 and equal treatment of all classes of Bie, Kamath & Zhang (2023). Convolutions, which they have, are
too slow here. The generator of images is the network of our own, which makes smooth images: with linear layers alone, a
logistic regression on images of DP-CGAN finds far fewer of the images that were set aside. These were 10 000 training
images of MNIST. The number of steps is what two cores can train in less than five minutes. Nothing was chosen on
FashionMNIST, Adult, or test images.
"""

from __future__ import annotations

from experiments.rivals.critic import Critic
from experiments.rivals.gan import Gan
from kme_jax.generators.networks import MLP, SmoothImages

_CODE = 20  # length of the latent code
_IMAGES = {"generator": SmoothImages(code=_CODE, styles=0, noise=1.0), "critic": Critic(widths=(128,))}
_TABLES = {"generator": MLP(widths=(128, 128), code=_CODE), "critic": Critic(widths=(128,)), "batch_size": 300}
SETTINGS = {
    kind: {"dp_gan": Gan("together", **sizes), "dp_cgan": Gan("apart", **sizes)}
    for kind, sizes in (("images", _IMAGES), ("tables", _TABLES))
}
"""{images or tables: {rival: how it is trained}}."""
