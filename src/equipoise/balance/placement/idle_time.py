"""The gain of lending a learner's device to generation while the learner waits for samples.

A lent device goes on learning: it draws tokens whenever its learner has no batch, so the learners
stay the same and no parameters move. (``lending.py`` also has the other kind, in which a lent
device does not learn.) The forecast of an update follows from one measured update:

- the samples of the moment are divided evenly among the devices that draw, unless these draw as
  many as they may: then a further device draws further samples;
- a step of a device takes a constant, and a time for each of its samples;
- a learner's device draws while its learner does not learn, less the time of changing over.
"""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.balance.placement.lending import Gains


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One update, as it was measured: of one learner and the generators that write for it."""

    seconds: float
    learn_s: float  # of them, the learner learned and published
    tokens: float  # that were drawn meanwhile
    samples: float  # that were drawn at the same time, by all devices; mean over tokens
    step_s: float  # of a step without its samples
    sample_s: float  # that each sample adds to a step
    generators: int  # devices that only draw
    lent: bool  # does the learner's device draw?
    full: bool = False  # do the devices draw as many samples as they may?
    # seconds of an update in which a lent device neither learns nor draws: new weights are taken,
    # and the step under way is completed when there is a batch
    change_s: float = 0.0


def forecast(update: Update, *, lent: bool) -> float:
    """Return the seconds of such an update, with the learner's device lent or not."""
    devices, drew = update.generators + lent, update.generators + update.lent
    rows = max(update.samples / (drew if update.full else devices), 1.0)
    step = update.step_s + update.sample_s * rows
    busy = update.learn_s + (update.change_s if lent else 0.0)
    if step <= 0:
        return busy
    rate = rows / step  # tokens/s of a device
    drawing = (update.tokens + (rate * busy if lent else 0.0)) / (rate * devices)
    return max(drawing, busy)


def gains(update: Update) -> Gains:
    """Return the gain of lending the learner's device, or of taking it back."""
    now, other = (forecast(update, lent=one) for one in (update.lent, not update.lent))
    if update.lent:
        return Gains(update_s=update.seconds, back=now - other)
    # lending saves no more time than the learner waits
    waits = max(update.seconds - update.learn_s, 0.0)
    return Gains(update_s=update.seconds, lend=min(now - other, waits))


def step_line(
    steps: float, samples: float, seconds: float, products: float, squares: float
) -> tuple[float, float]:
    """Fit the seconds of a step, a constant and a time for each sample, by least squares; neither
    is below 0.

    Sums over steps: their number, samples, seconds, samples * seconds, samples squared. If all
    steps had the same number of samples, half of their time counts as constant.
    """
    if not steps or not samples:
        return 0.0, 0.0
    mean, mean_s = samples / steps, seconds / steps
    spread = squares / steps - mean * mean
    slope = mean_s / (2 * mean)
    if spread > 1e-6 * mean * mean:
        slope = min(max((products / steps - mean * mean_s) / spread, 0.0), mean_s / mean)
    return mean_s - slope * mean, slope
