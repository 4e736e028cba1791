"""PPO of gymnax' CartPole with env, policy and updates in one jitted program, as purejaxrl has it;
prints a line of JSON.

The same algorithm, sizes and network as our recipe's, in JAX alone: what a run costs where nothing
leaves XLA.
"""

import argparse
import json
import time

import gymnax
import jax
import jax.numpy as jnp
import optax

parser = argparse.ArgumentParser()
for name, kind, value in (
    ("streams", int, 64),
    ("unroll", int, 32),
    ("steps", int, 1_000_000),
    ("epochs", int, 4),
    ("minibatches", int, 4),
    ("lr", float, 2e-3),
    ("gamma", float, 0.99),
    ("lambda_", float, 0.95),
    ("clip", float, 0.2),
    ("entropy", float, 0.01),
    ("value", float, 0.5),
    ("norm", float, 0.5),
    ("seed", int, 0),
    ("hidden", int, 64),
):
    parser.add_argument(f"--{name}", type=kind, default=value)
a = parser.parse_args()
rows = a.streams * a.unroll
updates = a.steps // rows
env, params = gymnax.make("CartPole-v1")


def layers(key, sizes, scales):
    keys = jax.random.split(key, len(scales))
    make = jax.nn.initializers.orthogonal
    return [
        (make(s)(k, (i, o)), jnp.zeros(o)) for k, s, i, o in zip(keys, scales, sizes, sizes[1:])
    ]


def mlp(layers, x):
    for w, b in layers[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = layers[-1]
    return x @ w + b


def schedule(count):
    return a.lr * (1 - count // (a.epochs * a.minibatches) / updates)


optimizer = optax.chain(optax.clip_by_global_norm(a.norm), optax.adam(schedule, eps=1e-5))


def loss(net, batch, advantage, target):
    obs, action, old, value = batch
    logits = jax.nn.log_softmax(mlp(net["policy"], obs))
    log_prob = jnp.take_along_axis(logits, action[:, None], 1)[:, 0]
    now = mlp(net["value"], obs)[:, 0]
    clipped = value + jnp.clip(now - value, -a.clip, a.clip)
    value_loss = 0.5 * jnp.maximum((now - target) ** 2, (clipped - target) ** 2).mean()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = jnp.exp(log_prob - old)
    policy_loss = -jnp.minimum(
        ratio * advantage, jnp.clip(ratio, 1 - a.clip, 1 + a.clip) * advantage
    ).mean()
    entropy = -(jnp.exp(logits) * logits).sum(-1).mean()
    return policy_loss + a.value * value_loss - a.entropy * entropy


def act(carry, _):
    net, state, obs, key, total = carry
    key, k_action, k_step = jax.random.split(key, 3)
    logits = mlp(net["policy"], obs)
    action = jax.random.categorical(k_action, logits)
    log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)[:, 0]
    value = mlp(net["value"], obs)[:, 0]
    step = jax.vmap(env.step, in_axes=(0, 0, 0, None))
    after, state, reward, ends, cut, _ = step(
        jax.random.split(k_step, a.streams), state, action, params
    )
    done = ends | cut
    length = total[0] + 1
    # of the episode, of the last one that ended
    total = (jnp.where(done, 0, length), jnp.where(done, length, total[1]))
    return (net, state, after, key, total), ((obs, action, log_prob, value), reward, done)


def update(carry, _):
    net, slow, state, obs, key, total = carry
    (net, state, obs, key, total), (batch, reward, done) = jax.lax.scan(
        act, (net, state, obs, key, total), None, a.unroll
    )
    last = mlp(net["value"], obs)[:, 0]

    def back(carry, row):
        gae, after = carry
        reward, done, value = row
        delta = reward + a.gamma * after * ~done - value
        gae = delta + a.gamma * a.lambda_ * ~done * gae
        return (gae, value), gae

    _, advantage = jax.lax.scan(
        back, (jnp.zeros(a.streams), last), (reward, done, batch[3]), reverse=True
    )
    flat = jax.tree.map(
        lambda x: x.reshape(rows, *x.shape[2:]), (batch, advantage, advantage + batch[3])
    )

    def epoch(carry, _):
        net, slow, key = carry
        key, now = jax.random.split(key)
        order = jax.random.permutation(now, rows)
        parts = jax.tree.map(lambda x: x[order].reshape(a.minibatches, -1, *x.shape[1:]), flat)

        def one(carry, part):
            net, slow = carry
            change, slow = optimizer.update(jax.grad(loss)(net, *part), slow)
            return (optax.apply_updates(net, change), slow), None

        (net, slow), _ = jax.lax.scan(one, (net, slow), parts)
        return (net, slow, key), None

    (net, slow, key), _ = jax.lax.scan(epoch, (net, slow, key), None, a.epochs)
    return (net, slow, state, obs, key, total), total[1].mean()


@jax.jit
def train(key):
    k_policy, k_value, k_reset, key = jax.random.split(key, 4)
    root = 2**0.5
    net = {
        "policy": layers(k_policy, (4, a.hidden, a.hidden, 2), (root, root, 0.01)),
        "value": layers(k_value, (4, a.hidden, a.hidden, 1), (root, root, 1.0)),
    }
    obs, state = jax.vmap(env.reset, in_axes=(0, None))(
        jax.random.split(k_reset, a.streams), params
    )
    total = (jnp.zeros(a.streams, jnp.int32), jnp.zeros(a.streams, jnp.int32))
    return jax.lax.scan(update, (net, optimizer.init(net), state, obs, key, total), None, updates)[
        1
    ]


began = time.perf_counter()
compiled = train.lower(jax.random.key(a.seed)).compile()
middle = time.perf_counter()
returns = jax.block_until_ready(compiled(jax.random.key(a.seed)))
wall = time.perf_counter() - middle
print(
    json.dumps(
        {
            "steps_per_s": updates * rows / wall,
            "wall_s": wall,
            "compile_s": middle - began,
            "return": float(returns[-1]),
        }
    )
)
