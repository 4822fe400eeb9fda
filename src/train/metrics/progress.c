/* progress.c: the line, and when and how it is shown. */
#include "train/metrics/progress.h"
#include "base/size.h"

#include <math.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* ---- the line ---- */

static bool put_rate(iv_buf *out, double v) {
    if (!(v >= 1000)) return iv_buf_printf(out, "  %.0f tokens/s", v);
    return v < 1e6 ? iv_buf_printf(out, "  %.1fk tokens/s", v / 1e3) : iv_buf_printf(out, "  %.2fM tokens/s", v / 1e6);
}

static bool put_time(iv_buf *out, double seconds) {
    if (!(seconds < 1e9)) return true;
    unsigned long long s = (unsigned long long)(seconds + 0.5), hours = s / 3600;
    if (hours) return iv_buf_printf(out, "  %llu:%02llu:%02llu left", hours, s / 60 % 60, s % 60);
    return iv_buf_printf(out, "  %llu:%02llu left", s / 60, s % 60);
}

bool iv_train_progress_line(const iv_train_metrics *m, uint64_t total, double seconds_left, iv_buf *out) {
    double v;
    bool ok = iv_buf_printf(out, "step %llu/%llu", (unsigned long long)m->step, (unsigned long long)total);
    if (iv_train_metrics_get(m, "reward", &v))
        ok = ok && iv_buf_printf(out, "  reward %.4g", v);
    else if (iv_train_metrics_get(m, "loss", &v))
        ok = ok && iv_buf_printf(out, "  loss %.4g", v);
    if (iv_train_metrics_get(m, "eval_reward", &v) || iv_train_metrics_get(m, "eval_loss", &v))
        ok = ok && iv_buf_printf(out, "  held out %.4g", v);
    if (iv_train_metrics_get(m, "kl", &v)) ok = ok && iv_buf_printf(out, "  kl %.3g", v);
    if (iv_train_metrics_get(m, "tokens_per_second", &v) && isfinite(v)) ok = ok && put_rate(out, v);
    if (iv_train_metrics_get(m, "steps_without_advantage", &v))
        ok = ok && iv_buf_printf(out, "  no advantage for %.0f steps", v);
    if (seconds_left >= 0) ok = ok && put_time(out, seconds_left);
    return ok;
}

/* ---- showing it ---- */

void iv_train_progress_begin(iv_train_progress *p, FILE *out, uint64_t total, double now) {
    struct winsize size;
    *p = (iv_train_progress){.out = out, .total = total, .start = now, .shown = now};
    if (!out) return;
    p->terminal = isatty(fileno(out));
    if (p->terminal && ioctl(fileno(out), TIOCGWINSZ, &size) == 0) p->columns = size.ws_col;
}

void iv_train_progress_step(iv_train_progress *p, const iv_train_metrics *m, double now) {
    iv_buf line = {0};
    bool last = m->step >= p->total;
    p->done++;
    if (!p->out) return;
    if (!p->terminal && p->any && !last && now - p->shown < IV_TRAIN_PROGRESS_SECONDS) return;
    double left = last ? 0 : (now - p->start) / (double)p->done * (double)(p->total - m->step);
    if (iv_train_progress_line(m, p->total, left, &line)) {
        /* One column stays free: a full line would wrap, and \r goes to the beginning of its last row only. */
        size_t n = p->columns > 1 ? iv_size_min(line.len, p->columns - 1) : line.len;
        fprintf(p->out, p->terminal ? "\r%.*s\033[K" : "%.*s\n", (int)n, line.data);
        fflush(p->out);
        p->any = true, p->open = p->terminal, p->shown = now;
    }
    iv_buf_free(&line);
}

void iv_train_progress_break(iv_train_progress *p) {
    if (!p->open) return;
    fputc('\n', p->out);
    fflush(p->out);
    p->open = false;
}
