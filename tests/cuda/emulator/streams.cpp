// streams.cpp: streams, events and graphs. A stream is a thread that executes its work in order, concurrently with the
// host and all other streams. So the GPUs of a process synchronize as on real hardware, and premature host accesses
// show. Consecutive launches in a stream run together and may overlap if they allow it.
//
// Work in no stream (the default one, or a per-thread one) is done by the calling thread, at its next call.
#include "machine.h"

#include <condition_variable>
#include <cstdlib>
#include <ctime>
#include <map>
#include <set>
#include <thread>
#include <unistd.h>

namespace emu {

struct Operation {
    bool launches; // work that `run` enqueues runs together with what follows it
    std::function<int()> run;
};

struct Graph {
    std::vector<Operation> operations;
};

struct Stream {
    int device;
    std::deque<Operation> todo;
    bool busy, ends;
    int error; // the first error; nothing is executed after it, but events complete
    std::unique_ptr<Graph> capture;
    std::thread thread;
};

struct Event {
    uint64_t recorded, passed;
    int error;
};

// Never destroyed: a process may exit while its streams wait.
static std::mutex &lock = *new std::mutex; // protects all of the following, all streams and events
static std::condition_variable &changed = *new std::condition_variable;
static std::set<Stream *> &streams = *new std::set<Stream *>;
static std::map<const char *, size_t> &pinned = *new std::map<const char *, size_t>; // host memory, bytes
static uint64_t streams_made, graph_launches;

uint64_t host_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static std::atomic<int> troubled{-1}; // device
static std::atomic<long> launches_left;
static std::atomic<unsigned> stall_ms;
static std::atomic<bool> peers_apart;

enum { STALL_SECONDS_MAX = 300 };

static bool is_idle(const Stream *s) { return s->todo.empty() && !s->busy; }

// Before a launch: 0, or an error instead of it.
static int trouble(int device) {
    long left = troubled == device ? --launches_left : 0;
    if (left >= 0) return 0;
    if (!stall_ms) return cudaErrorDevicesUnavailable;
    if (left != -1) return 0;
    usleep(stall_ms * 1000);
    std::unique_lock<std::mutex> hold(lock); // however slow this machine is, the others have timed out by then
    changed.wait_for(hold, std::chrono::seconds(STALL_SECONDS_MAX), [device] {
        for (Stream *s : streams)
            if (s->device != device && !is_idle(s)) return false;
        return true;
    });
    return 0;
}

static int run(const std::vector<Operation> &now) {
    int error = 0;
    for (const Operation &o : now)
        if (!error) error = o.run();
    int ended = finish_all();
    return error ? error : ended;
}

static void work(Stream *s, uint64_t number) {
    begin_thread(s->device, number);
    std::unique_lock<std::mutex> hold(lock);
    for (;;) {
        changed.wait(hold, [s] { return s->ends || !s->todo.empty(); });
        if (s->todo.empty()) break;
        std::vector<Operation> now;
        do {
            now.push_back(std::move(s->todo.front()));
            s->todo.pop_front();
        } while (now.back().launches && !s->todo.empty() && s->todo.front().launches);
        s->busy = true;
        bool skip = s->error && now.front().launches;
        hold.unlock();
        int error = skip ? 0 : run(now);
        hold.lock();
        s->busy = false;
        if (!s->error) s->error = error;
        changed.notify_all();
    }
    hold.unlock();
    end_thread();
}

static cudaError_t enqueue(Stream *s, Operation o) { // under the lock
    if (s->capture) {
        s->capture->operations.push_back(std::move(o));
    } else {
        s->todo.push_back(std::move(o));
        changed.notify_all();
    }
    return cudaSuccess;
}

void launch_in(void *stream, const shape &s, std::function<void()> body) {
    std::lock_guard<std::mutex> hold(lock);
    int device = ((Stream *)stream)->device;
    enqueue((Stream *)stream, {true, [s, body, device] {
                                   int error = trouble(device);
                                   if (!error) enqueue(s, body);
                                   return error;
                               }});
}

int wait_for_streams(int device) {
    std::unique_lock<std::mutex> hold(lock);
    int error = 0;
    changed.wait(hold, [device] {
        for (Stream *s : streams)
            if (s->device == device && !is_idle(s)) return false;
        return true;
    });
    for (Stream *s : streams)
        if (s->device == device && !error) error = s->error;
    return error;
}

static bool is_pinned(const void *p) {
    std::lock_guard<std::mutex> hold(lock);
    auto next = pinned.upper_bound((const char *)p);
    return next != pinned.begin() && (const char *)p < std::prev(next)->first + std::prev(next)->second;
}

// Done by the stream, or now.
static cudaError_t soon(cudaStream_t stream, std::function<void()> what) {
    if (!is_stream(stream)) {
        cudaError_t code = finish_all();
        if (!code) what();
        return code;
    }
    std::lock_guard<std::mutex> hold(lock);
    return enqueue((Stream *)stream, {false, [what] { return what(), 0; }});
}

} // namespace emu

using namespace emu;

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned) {
    int device;
    cudaGetDevice(&device);
    std::lock_guard<std::mutex> hold(lock);
    Stream *s = new Stream{};
    s->device = device, s->thread = std::thread(work, s, ++streams_made);
    streams.insert(s);
    *out = (cudaStream_t)s;
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *out) { return cudaStreamCreateWithFlags(out, 0); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int) {
    return cudaStreamCreateWithFlags(out, flags);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *most) { return *least = *most = 0, cudaSuccess; }

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    Stream *s = (Stream *)stream;
    if (!is_stream(s)) return cudaErrorInvalidValue;
    {
        std::lock_guard<std::mutex> hold(lock);
        s->ends = true;
        changed.notify_all();
    }
    s->thread.join();
    std::lock_guard<std::mutex> hold(lock);
    streams.erase(s);
    delete s;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    Stream *s = (Stream *)stream;
    if (!is_stream(s)) return finish_all();
    std::unique_lock<std::mutex> hold(lock);
    changed.wait(hold, [s] { return is_idle(s); });
    return s->error;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    Stream *s = (Stream *)stream;
    if (!is_stream(s)) return finish_all();
    std::lock_guard<std::mutex> hold(lock);
    return is_idle(s) ? s->error : (int)cudaErrorNotReady;
}

// Host memory that is not pinned is read before the call returns, and written before it returns.
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, int kind, cudaStream_t s) {
    if (!n) return cudaSuccess;
    if (kind == cudaMemcpyHostToDevice && is_stream(s) && !is_pinned(from)) {
        auto staged = std::make_shared<std::vector<char>>((const char *)from, (const char *)from + n);
        return soon(s, [=] { memcpy(to, staged->data(), n); });
    }
    cudaError_t code = soon(s, [=] { memcpy(to, from, n); });
    if (code || kind != cudaMemcpyDeviceToHost || is_pinned(to)) return code;
    return cudaStreamSynchronize(s);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t rows,
                              int, cudaStream_t s) {
    return soon(s, [=] {
        for (size_t i = 0; i < rows; i++) memcpy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width);
    });
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t n, cudaStream_t s) {
    return soon(s, [=] { memset(to, value, n); });
}
cudaError_t cudaMemset2DAsync(void *to, size_t pitch, int value, size_t width, size_t rows, cudaStream_t s) {
    return soon(s, [=] {
        for (size_t i = 0; i < rows; i++) memset((char *)to + i * pitch, value, width);
    });
}
cudaError_t cudaMemcpyPeer(void *to, int, const void *from, int, size_t n) {
    return cudaMemcpy(to, from, n, cudaMemcpyDefault);
}

// ---- events ----

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned) { return *e = (cudaEvent_t) new Event{}, cudaSuccess; }

// A destroyed event is not used again by the caller, but a stream may still refer to it.
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    Event *e = (Event *)event;
    Stream *s = (Stream *)stream;
    cudaError_t code = is_stream(s) ? cudaSuccess : finish_all();
    std::lock_guard<std::mutex> hold(lock);
    uint64_t number = ++e->recorded;
    if (!is_stream(s)) return e->passed = number, code;
    if (s->capture) return cudaErrorNotSupported;
    return enqueue(s, {false, [=] {
                           std::lock_guard<std::mutex> hold_then(lock);
                           e->passed = number, e->error = s->error;
                           return changed.notify_all(), 0;
                       }});
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    Event *e = (Event *)event;
    std::unique_lock<std::mutex> hold(lock);
    auto has_passed = [e] { return e->passed >= e->recorded; };
    if (!changed.wait_for(hold, std::chrono::microseconds(PAUSE_US), has_passed)) return cudaErrorNotReady;
    return e->error;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    Event *e = (Event *)event;
    Stream *s = (Stream *)stream;
    if (!is_stream(s)) { // its launches run in this thread
        std::unique_lock<std::mutex> hold(lock);
        changed.wait(hold, [e] { return e->passed >= e->recorded; });
        return e->error;
    }
    std::lock_guard<std::mutex> hold(lock);
    if (s->capture) return cudaErrorNotSupported;
    uint64_t number = e->recorded;
    return enqueue(s, {false, [=] {
                           std::unique_lock<std::mutex> hold_then(lock);
                           changed.wait(hold_then, [=] { return e->passed >= number; });
                           return 0;
                       }});
}

// ---- graphs: what was enqueued, in order ----

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, int) {
    Stream *s = (Stream *)stream;
    if (!is_stream(s) || s->capture) return cudaErrorNotSupported;
    std::lock_guard<std::mutex> hold(lock);
    return s->capture.reset(new Graph), cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *g) {
    std::lock_guard<std::mutex> hold(lock);
    *g = (cudaGraph_t)((Stream *)stream)->capture.release();
    return *g ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *e, cudaGraph_t g, unsigned long long) {
    return *e = (cudaGraphExec_t) new Graph(*(Graph *)g), cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t stream) {
    if (!is_stream(stream)) return cudaErrorNotSupported;
    std::lock_guard<std::mutex> hold(lock);
    for (const Operation &o : ((Graph *)e)->operations) enqueue((Stream *)stream, o);
    return graph_launches++, cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g) { return delete (Graph *)g, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e) { return delete (Graph *)e, cudaSuccess; }

// ---- host memory, peer memory ----

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned) {
    *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!*p) return cudaErrorMemoryAllocation;
    std::lock_guard<std::mutex> hold(lock);
    return pinned[(const char *)*p] = bytes, cudaSuccess;
}
cudaError_t cudaFreeHost(void *p) {
    std::lock_guard<std::mutex> hold(lock);
    return pinned.erase((const char *)p), free(p), cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int a, int b) {
    *can = a != b && !peers_apart;
    return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }

size_t emu_graph_launches(void) { return graph_launches; }
void emu_trouble(int on_device, long after_launches, unsigned stalls_ms) {
    launches_left = after_launches, stall_ms = stalls_ms, troubled = on_device;
}
void emu_keep_peers_apart(bool apart) { peers_apart = apart; }
}
