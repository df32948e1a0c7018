/* A libcupti.so for tests: what a client may rely on, without a GPU. Ours.
 *
 * `standin_launch` plays the GPU: records of so many kernels and copies, on a made-up clock, go into the buffers of
 * all subscribers that have the kinds enabled. Full buffers are handed over by a thread of the library's own, as
 * CUPTI does it; at the end of the process by its destructor, when Python is no more.
 *
 * CUPTI_STANDIN is a list of words, `name=value`:
 *   version=130001   what cuptiGetVersion says; from 130300 on there may be several subscribers, which all ask for it
 *   taken=1          another tool has subscribed before
 *   driver=0         no driver: each call returns 999
 *   fail=N           the Nth call of cuptiActivityEnable returns INSUFFICIENT_PRIVILEGES (35)
 *   trap=1           a buffer that is handed over at the end of the process ends it by SIGABRT instead */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID_PARAMETER = 1, MAX_LIMIT = 12, INVALID_KIND = 21, PRIVILEGES = 35, MULTIPLE = 39, UNKNOWN = 999 };
enum { MEMCPY = 1, MEMSET = 2, KERNEL = 10, KINDS = 64, MANY = 4 };

typedef void (*Requested)(uint8_t **, size_t *, size_t *, void *); /* without the last, of version 1 */
typedef void (*Completed)(void *, uint32_t, uint8_t *, size_t, size_t);
typedef void (*CompletedV2)(uint8_t *, size_t, size_t, void *);

typedef struct {
    int used, several, second; /* second: registered by the functions of version 2 */
    char name[64], enabled[KINDS];
    Requested requested;
    Completed completed;
    CompletedV2 completed2;
    uint8_t *buffer;
    size_t size, most, filled, count, dropped;
} Subscriber;

typedef struct { size_t structSize; const char *name; char *old; size_t oldSize; uint8_t several; } Params;
typedef struct Full { Subscriber of; struct Full *next; } Full; /* a buffer to be handed over, and how */

static Subscriber subscribers[MANY];
static Full *waiting;
static int delivering, started, ending;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint64_t now = 1000000000000ull; /* ns; moves as kernels run */
static pid_t home;

static long word(const char *name, long otherwise) {
    const char *at = getenv("CUPTI_STANDIN");
    size_t length = strlen(name);
    for (; at && *at; at = strchr(at, ' ') ? strchr(at, ' ') + 1 : "")
        if (!strncmp(at, name, length) && at[length] == '=') return atol(at + length + 1);
    return otherwise;
}

#define UP if (!word("driver", 1)) return UNKNOWN

static size_t size_of(uint32_t kind) {
    return kind == KERNEL ? (word("version", 130001) < 130000 ? 208 : 216) : kind == MEMCPY ? 96 : kind == MEMSET ? 88 : 0;
}

static void hand_over(Full *full) {
    Subscriber *s = &full->of;
    if (s->second) s->completed2(s->buffer, s->size, s->filled, 0);
    else s->completed(0, 0, s->buffer, s->size, s->filled);
    free(full);
}

static void *deliver(void *unused) {
    pthread_mutex_lock(&lock);
    while (!ending) {
        while (!waiting && !ending) pthread_cond_wait(&changed, &lock);
        Full *full = waiting;
        if (!full) break;
        waiting = full->next;
        delivering = 1;
        pthread_mutex_unlock(&lock);
        hand_over(full);
        pthread_mutex_lock(&lock);
        delivering = 0;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return unused;
}

static void give_back(Subscriber *s) { /* with the lock */
    if (!s->buffer) return;
    Full *full = calloc(1, sizeof *full), **last = &waiting;
    full->of = *s;
    while (*last) last = &(*last)->next;
    *last = full;
    s->buffer = 0;
    if (!started) {
        pthread_t thread;
        started = !pthread_create(&thread, 0, deliver, 0);
        pthread_detach(thread);
    }
    pthread_cond_broadcast(&changed);
}

static void record(Subscriber *s, uint32_t kind, uint64_t start, uint64_t end) { /* with the lock */
    size_t size = size_of(kind);
    if (!s->used || !s->enabled[kind] || !s->requested) return;
    if (s->buffer && (s->filled + size > s->size || (s->most && s->count >= s->most))) give_back(s);
    if (!s->buffer) {
        s->filled = s->count = s->size = s->most = 0;
        pthread_mutex_unlock(&lock);
        s->requested(&s->buffer, &s->size, &s->most, 0);
        pthread_mutex_lock(&lock);
        if (!s->buffer || s->size < size) { s->buffer = 0; s->dropped++; return; }
    }
    uint8_t *at = s->buffer + s->filled;
    memset(at, 0, size);
    memcpy(at, &kind, 4);
    memcpy(at + 16, &start, 8);
    memcpy(at + 24, &end, 8);
    s->filled += size;
    s->count++;
}

/* One step of a framework: kernels of `kernel_ns` each, `gap_ns` between them, and copies of 1 µs behind them. */
void standin_launch(int kernels, int copies, uint64_t kernel_ns, uint64_t gap_ns) {
    if (getpid() != home) return; /* a forked child has no CUDA */
    pthread_mutex_lock(&lock);
    for (int i = 0; i < kernels + copies; i++) {
        uint64_t took = i < kernels ? kernel_ns : 1000;
        for (int k = 0; k < MANY; k++) record(&subscribers[k], i < kernels ? KERNEL : i % 2 ? MEMSET : MEMCPY, now, now + took);
        now += took + gap_ns;
    }
    pthread_mutex_unlock(&lock);
}

static Subscriber *free_one(int several, int *code) {
    static int first_several;
    Subscriber *free = 0;
    int used = 0;
    for (int k = 0; k < MANY; k++) {
        if (subscribers[k].used) used++;
        else if (!free) free = &subscribers[k];
    }
    if (several && word("version", 130001) < 130300) several = 0;
    if (!used) first_several = several;
    *code = word("taken", 0) || !free || (used && !(several && first_several)) ? MULTIPLE : OK;
    return *code ? 0 : free;
}

static int subscribe(Subscriber **handle, int several, const char *name) {
    int code;
    pthread_mutex_lock(&lock);
    *handle = free_one(several, &code);
    if (*handle) {
        memset(*handle, 0, sizeof **handle);
        (*handle)->used = 1;
        (*handle)->several = several;
        snprintf((*handle)->name, 64, "CUPTI for %s", name ? name : "?");
    }
    pthread_mutex_unlock(&lock);
    return code;
}

int cuptiGetVersion(uint32_t *version) { UP; *version = (uint32_t)word("version", 130001); return OK; }
int cuptiGetTimestamp(uint64_t *ns) { UP; *ns = now; return OK; }
int cuptiGetResultString(int code, const char **text) {
    *text = code == MULTIPLE ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"
          : code == PRIVILEGES ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" : code ? "CUPTI_ERROR_UNKNOWN" : "CUPTI_SUCCESS";
    return OK;
}
int cuptiSubscribe(Subscriber **handle, void *callback, void *data) { UP; return subscribe(handle, 0, 0); }
int cuptiSubscribe_v2(Subscriber **handle, void *callback, void *data, Params *params) {
    UP;
    if (params->structSize < 32) return INVALID_PARAMETER; /* without the last field: of before 13.3 */
    int code = subscribe(handle, params->structSize > 32 && params->several, params->name);
    if (code == MULTIPLE && params->old) snprintf(params->old, params->oldSize, "%s", word("taken", 0) ? "Nsight Systems" : subscribers[0].name);
    return code;
}
int cuptiUnsubscribe(Subscriber *handle) { /* what is left in its buffer is lost, as with CUPTI */
    UP;
    if (!handle || !handle->used) return INVALID_PARAMETER;
    pthread_mutex_lock(&lock);
    handle->used = 0;
    pthread_mutex_unlock(&lock);
    return OK;
}

static Subscriber *global(void) { /* that of version 1, which has no handle in its calls */
    for (int k = 0; k < MANY; k++)
        if (subscribers[k].used && !subscribers[k].several) return &subscribers[k];
    return 0;
}
static int enable(Subscriber *s, uint32_t kind, int on) {
    static int calls;
    UP;
    if (on && ++calls == word("fail", 0)) return PRIVILEGES;
    if (!s || kind >= KINDS || !size_of(kind)) return INVALID_KIND;
    s->enabled[kind] = (char)on;
    return OK;
}
int cuptiActivityEnable(uint32_t kind) { return enable(global(), kind, 1); }
int cuptiActivityDisable(uint32_t kind) { return enable(global(), kind, 0); }
int cuptiActivityEnable_v2(Subscriber *s, uint32_t kind, void *config) { return enable(s, kind, 1); }
int cuptiActivityDisable_v2(Subscriber *s, uint32_t kind, void *config) { return enable(s, kind, 0); }
int cuptiActivityRegisterCallbacks(Requested requested, Completed completed) {
    Subscriber *s = global();
    UP;
    if (!s || !requested || !completed) return INVALID_PARAMETER;
    s->requested = requested;
    s->completed = completed;
    return OK;
}
int cuptiActivityRegisterCallbacks_v2(Subscriber *s, Requested requested, CompletedV2 completed) {
    UP;
    s->second = 1;
    s->requested = requested;
    s->completed2 = completed;
    return OK;
}
int cuptiActivityFlushAll(uint32_t flag) {
    UP;
    pthread_mutex_lock(&lock);
    for (int k = 0; k < MANY; k++)
        if (subscribers[k].used && (flag || subscribers[k].filled)) give_back(&subscribers[k]);
    while (waiting || delivering) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return OK;
}
int cuptiActivityGetNumDroppedRecords_v2(Subscriber *s, void *context, uint32_t stream, size_t *dropped) {
    UP;
    *dropped = s ? s->dropped : 0;
    if (s) s->dropped = 0;
    return OK;
}
int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped) {
    return cuptiActivityGetNumDroppedRecords_v2(global(), context, stream, dropped);
}
int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, uint8_t **next) {
    uint32_t kind;
    if (*next) {
        memcpy(&kind, *next, 4);
        if (!size_of(kind)) return INVALID_KIND;
        *next += size_of(kind);
    } else {
        *next = buffer;
    }
    return *next >= buffer + valid ? MAX_LIMIT : OK;
}
int cuptiActivityGetNextRecord_v2(Subscriber *s, uint8_t *buffer, size_t valid, uint8_t **next) {
    return cuptiActivityGetNextRecord(buffer, valid, next);
}

static void forked(void) { /* as CUDA: of no use in a child */
    waiting = 0;
    started = delivering = 0;
    memset(subscribers, 0, sizeof subscribers);
    pthread_mutex_init(&lock, 0);
}

__attribute__((constructor)) static void begin(void) {
    home = getpid();
    pthread_atfork(0, 0, forked);
}

__attribute__((destructor)) static void end(void) {
    if (getpid() != home) return;
    for (int k = 0; k < MANY; k++) {
        Subscriber *s = &subscribers[k];
        if (!s->used || !s->buffer || !s->filled) continue;
        if (word("trap", 0)) abort();
        Full *full = calloc(1, sizeof *full);
        full->of = *s;
        hand_over(full);
    }
}
