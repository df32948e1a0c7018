/* What every call passes through: counting, delays, scripted codes; time; handles of the test. */
#include "standin.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct symbol *symbols;
static long total;
static int initialised;
static pid_t loaded_by;
static double start_s;   /* wall seconds of scenario time 0 */
static double manual_s = -1; /* >= 0: time stands still until the test moves it */

static double wall_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double now_s(void) { return manual_s >= 0 ? manual_s : wall_s() - start_s; }

static int64_t microseconds(double seconds) { return (int64_t)(seconds * 1e6 + 0.5); }

int64_t now_wall_us(void) { return microseconds(start_s + now_s()); }

int64_t stamp_us(double t) {
    if (strcmp(option("samples_clock", "epoch"), "boot")) return microseconds(start_s + t);
    struct timespec boot; /* some drivers stamp since boot */
    clock_gettime(CLOCK_BOOTTIME, &boot);
    return microseconds((double)boot.tv_sec + 1e-9 * (double)boot.tv_nsec - wall_s() + start_s + t);
}

static void begin(const char *path) {
    loaded_by = getpid();
    scenario_load(path);
    start_s = option_number("start_us", 0) / 1e6;
    if (start_s <= 0) start_s = wall_s();
    manual_s = strcmp(option("time", "wall"), "manual") ? -1 : 0;
}

__attribute__((constructor)) static void loaded(void) { begin(getenv("NVML_STANDIN_SCENARIO")); }

void started(int by) {
    pthread_mutex_lock(&lock);
    initialised += by;
    if (initialised < 0) initialised = 0;
    pthread_mutex_unlock(&lock);
}

struct gpu *known(device handle) {
    for (int i = 0; i < gpus_total(); i++)
        if (handle == gpu_at(i)) return handle;
    return 0;
}

static int applies(struct rule *rule, const char *name, struct gpu *gpu, double t) {
    if (strcmp(rule->symbol, "*") && strcmp(rule->symbol, name)) return 0;
    if (rule->gpu >= 0 && (!gpu || gpu->index != rule->gpu)) return 0;
    if (t < rule->from || t >= rule->until) return 0;
    long seen = rule->seen++;
    return seen >= rule->after && seen < rule->after + rule->times;
}

static int scripted(const char *name, struct gpu *gpu, long *latency_us) {
    int count, code = 0;
    struct rule *list = rules(&count);
    double t = now_s();
    for (int i = 0; i < count; i++) {
        if (list[i].count >= 0 || !applies(&list[i], name, gpu, t)) continue;
        *latency_us += list[i].latency_us;
        if (list[i].code >= 0 && !code) code = list[i].code;
    }
    return code;
}

int enter(struct symbol *symbol, struct gpu *gpu) {
    long latency_us = 0;
    int system = !strncmp(symbol->name, "nvmlInit", 8) || !strcmp(symbol->name, "nvmlErrorString");
    /* A driver's state does not survive fork(): a test can make any use of it fatal. */
    if (getpid() != loaded_by && !strcmp(option("forked_calls", "answer"), "abort")) abort();
    pthread_mutex_lock(&lock);
    symbol->calls++;
    if (!symbol->listed) symbol->listed = 1, symbol->next = symbols, symbols = symbol;
    total++;
    int code = system || initialised ? scripted(symbol->name, gpu, &latency_us) : UNINITIALIZED;
    pthread_mutex_unlock(&lock);
    if (latency_us > 0) {
        struct timespec wait = {latency_us / 1000000, latency_us % 1000000 * 1000};
        nanosleep(&wait, 0);
    }
    return code;
}

int value_code(const char *what, struct gpu *gpu) {
    long ignored = 0;
    pthread_mutex_lock(&lock);
    int code = scripted(what, gpu, &ignored);
    pthread_mutex_unlock(&lock);
    return code;
}

long scripted_count(const char *symbol, struct gpu *gpu) {
    int count;
    struct rule *list = rules(&count);
    for (int i = 0; i < count; i++)
        if (list[i].count >= 0 && applies(&list[i], symbol, gpu, now_s())) return list[i].count;
    return -1;
}

/* For the test itself. */
EXPORT int standin_load(const char *path) {
    pthread_mutex_lock(&lock);
    begin(path);
    total = initialised = gpm_live = 0;
    for (struct symbol *symbol = symbols; symbol; symbol = symbol->next) symbol->calls = 0;
    pthread_mutex_unlock(&lock);
    return gpus_total();
}

EXPORT void standin_set_time(double seconds) { manual_s = seconds; }
EXPORT double standin_time(void) { return now_s(); }
EXPORT int64_t standin_start_us(void) { return microseconds(start_s); }
EXPORT long standin_total_calls(void) { return total; }

/* Calls of one symbol since the scenario was loaded. */
EXPORT long standin_calls(const char *name) {
    for (struct symbol *symbol = symbols; symbol; symbol = symbol->next)
        if (!strcmp(symbol->name, name)) return symbol->calls;
    return 0;
}
