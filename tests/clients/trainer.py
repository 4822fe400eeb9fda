#!/usr/bin/env python3
"""invar_train.h's trainer from Python through ctypes: trainer.py LIBRARY MODEL. A few supervised steps on one batch, in one call and
in parts with a Python function for the loss; both must come to one hash, and the loss must fall."""
import ctypes as c
import sys

STEPS = 4


class Error(c.Structure):
    _fields_ = [("status", c.c_int), ("message", c.c_char * 1000)]


class Options(c.Structure):
    _fields_ = [("size", c.c_size_t), ("model", c.c_char_p), ("load_format", c.c_char_p), ("dummy_seed", c.c_uint64),
                ("dtype", c.c_char_p), ("arithmetic", c.c_char_p), ("virtual_ranks", c.c_size_t), ("beta1", c.c_double),
                ("beta2", c.c_double), ("eps", c.c_double), ("weight_decay", c.c_double), ("decay_all", c.c_bool),
                ("run", c.c_char_p), ("no_optimizer", c.c_bool), ("isa", c.c_char_p), ("threads", c.c_size_t),
                ("data_parallel", c.c_size_t), ("tensor_parallel", c.c_size_t), ("pass_tokens", c.c_size_t),
                ("micro_batch", c.c_size_t), ("recompute", c.c_char_p), ("device", c.c_char_p)]


class Sequence(c.Structure):
    _fields_ = [("ids", c.POINTER(c.c_int32)), ("mask", c.POINTER(c.c_float)), ("count", c.c_size_t),
                ("logprobs", c.POINTER(c.c_float)), ("coefficients", c.POINTER(c.c_float))]


WEIGH = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_size_t, c.POINTER(Error))


class Batch(c.Structure):
    _fields_ = [("size", c.c_size_t), ("sequences", c.POINTER(Sequence)), ("count", c.c_size_t), ("temperature", c.c_float),
                ("weigh", WEIGH), ("user", c.c_void_p)]


class Metrics(c.Structure):
    _fields_ = [("steps", c.c_uint64), ("weights_hash", c.c_char * 65), ("loss", c.c_double), ("gradient_norm", c.c_double),
                ("learning_rate", c.c_double), ("sequences", c.c_uint64), ("tokens", c.c_uint64),
                ("tokens_learned", c.c_uint64), ("passes", c.c_uint64), ("gradient_seconds", c.c_double),
                ("reduce_seconds", c.c_double), ("optimizer_seconds", c.c_double), ("write_seconds", c.c_double)]


def train(lib, model, ranks, own_loss):
    error, options, trainer = Error(), Options(), c.c_void_p()

    def check(status):
        if status:
            sys.exit(f"trainer: {error.message.decode()}")

    lib.iv_trainer_options_init_sized(c.byref(options), c.c_size_t(c.sizeof(options)))
    options.model, options.threads, options.data_parallel, options.pass_tokens = model.encode(), 1, ranks, 256
    check(lib.iv_trainer_open(c.byref(options), c.byref(trainer), c.byref(error)))
    lengths = [7, 20, 3, 12]
    keep = [((c.c_int32 * n)(*[(31 * i + 7 * t) % 97 for t in range(n)]), (c.c_float * n)(*[float(t > 1) for t in range(n)]),
             (c.c_float * n)(), (c.c_float * n)()) for i, n in enumerate(lengths)]
    sequences = (Sequence * len(keep))(*[Sequence(ids, mask, len(ids), logprobs, own if own_loss else None)
                                         for ids, mask, logprobs, own in keep])
    batch, metrics, losses = Batch(), Metrics(), []
    lib.iv_trainer_batch_init_sized(c.byref(batch), c.c_size_t(c.sizeof(batch)))
    batch.sequences, batch.count = sequences, len(keep)

    def weigh(_user, i, _error):
        for t in range(len(keep[i][0])):
            keep[i][3][t] = keep[i][1][t]
        return 0

    batch.weigh = WEIGH(weigh) if own_loss else WEIGH()
    weight = sum(sum(mask) for _, mask, _, _ in keep)
    rate, norm = c.c_double(1e-3), c.c_double(1.0)
    for _ in range(STEPS):
        if own_loss:
            check(lib.iv_trainer_gradients(trainer, c.byref(batch), c.c_double(weight), c.byref(error)))
            check(lib.iv_trainer_apply(trainer, rate, norm, c.byref(error)))
        else:
            check(lib.iv_trainer_step(trainer, c.byref(batch), rate, norm, c.byref(error)))
        lib.iv_trainer_get_metrics(trainer, c.byref(metrics))
        losses.append(metrics.loss)
    lib.iv_trainer_close(trainer)
    return metrics.weights_hash.decode(), losses


def main():
    lib = c.CDLL(sys.argv[1])
    lib.iv_trainer_close.restype = None
    want, losses = train(lib, sys.argv[2], 1, False)
    own, _ = train(lib, sys.argv[2], 4, True)
    if want != own:
        sys.exit(f"trainer: wanted the weights {want}, a loss of one's own on 4 ranks came to {own}")
    if not losses[-1] < losses[0]:
        sys.exit(f"trainer: wanted a loss that falls, found {losses}")
    print(f"trainer from Python: loss {losses[0]:.4f} to {losses[-1]:.4f}, weights {want[:16]}, also on 4 ranks")


if __name__ == "__main__":
    main()
