/* Answers with many values: sample buffers, field values, GPM, processes, events. */
#include "abi.h"
#include "standin.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void put(union value *out, int type, double value) {
    out->ull = 0;
    switch (type) {
    case 0: out->d = value; break;
    case 1: out->ui = (unsigned)value; break;
    case 4: out->sll = (int64_t)value; break;
    case 5: out->si = (int)value; break;
    case 6: out->us = (unsigned short)value; break;
    default: out->ull = (uint64_t)value;
    }
}

static const char *sampled(unsigned type) {
    static const char *const names[] = {"power_mw", "utilization", "memory_utilization"};
    return type < 3 ? names[type] : "";
}

/* The ring of samples newer than `since` at most `room`; returns how many (room 0: how many fit). */
static unsigned ring(device gpu, unsigned type, uint64_t since, struct sample *out, unsigned room) {
    char listed[40];
    unsigned count = 0, capacity = (unsigned)option_number("samples_capacity", 120);
    double now = now_s(), period = option_number("samples_period_ms", 166.667) / 1e3;
    int dry = !strcmp(option("samples_idle", "kept"), "dry");
    snprintf(listed, sizeof listed, "samples:%u", type);
    const struct curve *list = gpu_curve(gpu, listed), *curve = gpu_curve(gpu, sampled(type));
    long last = list ? list->points - 1 : (long)floor(now / period), first = 0;
    while (list && last >= 0 && list->t[last] > now) last--;
    if (last - (long)capacity + 1 > first) first = last - capacity + 1;
    for (long k = first; k <= last && count < room; k++) {
        double t = list ? list->t[k] : (double)k * period;
        double value = list ? list->v[k] : floor(curve_at(curve, t));
        uint64_t stamp = (uint64_t)stamp_us(t);
        if (stamp <= since || (dry && value == 0)) continue;
        out[count].time_us = stamp;
        put(&out[count++].value, 1, value);
    }
    return count;
}

EXPORT int nvmlDeviceGetSamples(device gpu, unsigned type, uint64_t since, unsigned *value_type,
                                unsigned *count, struct sample *out) {
    ENTER(gpu);
    char listed[40];
    snprintf(listed, sizeof listed, "samples:%u", type);
    int generated = gpu_curve(gpu, sampled(type)) && strcmp(option("samples_period_ms", ""), "0");
    if (!gpu_curve(gpu, listed) && !generated) return NOT_SUPPORTED;
    *value_type = 1;
    if (!out) { /* how many the buffer holds at most */
        *count = (unsigned)option_number("samples_capacity", 120);
        return OK;
    }
    *count = ring(gpu, type, since, out, *count);
    return *count ? OK : NOT_FOUND;
}

EXPORT int nvmlDeviceGetFieldValues(device gpu, int count, struct field_value *values) {
    ENTER(gpu);
    for (int i = 0; i < count; i++) {
        struct field_value *out = &values[i];
        char name[40], any[40];
        snprintf(name, sizeof name, "field:%u:%u", out->id, out->scope);
        snprintf(any, sizeof any, "field:%u", out->id);
        const struct curve *curve = gpu_curve(gpu, name);
        out->time_us = now_wall_us(), out->latency_us = 1;
        out->code = value_code(any, gpu);
        if (out->code) continue;
        if (!curve) {
            out->code = NOT_SUPPORTED;
            continue;
        }
        out->type = (unsigned)curve->type;
        put(&out->value, curve->type, curve_at(curve, now_s()));
    }
    return OK;
}

/* GPM: a sample remembers when and of whom it was taken. */
struct gpm_sample { struct gpu *gpu; double t; };

long gpm_live;
EXPORT long standin_gpm_samples(void) { return gpm_live; }

EXPORT int nvmlGpmQueryDeviceSupport(device gpu, struct gpm_support *out) {
    ENTER(gpu);
    double value = 0;
    if (out->version != 1) return VERSION_MISMATCH;
    gpu_value(gpu, "gpm_supported", &value);
    out->supported = value > 0;
    return OK;
}
EXPORT int nvmlGpmSampleAlloc(struct gpm_sample **out) {
    ENTER_SYSTEM();
    *out = calloc(1, sizeof **out);
    __atomic_add_fetch(&gpm_live, 1, __ATOMIC_SEQ_CST);
    return OK;
}
EXPORT int nvmlGpmSampleFree(struct gpm_sample *sample) {
    ENTER_SYSTEM();
    free(sample);
    __atomic_sub_fetch(&gpm_live, 1, __ATOMIC_SEQ_CST);
    return OK;
}
static int gpm_take(struct gpu *gpu, struct gpm_sample *sample) {
    double value = 0;
    if (!gpu || !gpu_value(gpu, "gpm_supported", &value) || value <= 0) return NOT_SUPPORTED;
    sample->gpu = gpu, sample->t = now_s();
    return OK;
}
EXPORT int nvmlGpmSampleGet(device gpu, struct gpm_sample *sample) {
    ENTER(gpu);
    return gpm_take(gpu, sample);
}
EXPORT int nvmlGpmMigSampleGet(device gpu, unsigned gi, struct gpm_sample *sample) {
    ENTER(gpu);
    for (int i = 0; i < gpus_total(); i++)
        if (gpu_at(i)->mig_parent == gpu->index && gpu_at(i)->gi == gi)
            return gpm_take(gpu_at(i), sample);
    return NOT_FOUND;
}
EXPORT int nvmlGpmMetricsGet(struct gpm_get *get) {
    ENTER_SYSTEM();
    if (get->version != 1) return VERSION_MISMATCH;
    struct gpm_sample *a = get->first, *b = get->second;
    if (!a || !b || !a->gpu || a->gpu != b->gpu) return INVALID_ARGUMENT;
    /* Both within one refresh of the driver: nothing to compare. */
    int early = b->t - a->t < option_number("gpm_refresh_ms", 100) / 1e3;
    for (unsigned i = 0; i < get->count; i++) {
        struct gpm_metric *metric = &get->metric[i];
        char name[40];
        snprintf(name, sizeof name, "gpm:%u", metric->id);
        const struct curve *curve = gpu_curve(a->gpu, name);
        metric->code = value_code(name, a->gpu);
        if (!metric->code && !curve) metric->code = NOT_SUPPORTED;
        if (!metric->code && early) metric->code = NO_DATA;
        metric->value = metric->code ? NAN : curve_mean(curve, a->t, b->t);
        metric->short_name = metric->long_name = metric->unit = "";
    }
    return OK;
}

/* Processes */

static int running(device gpu, const char *symbol, int kind, unsigned *count,
                   struct process_info *out) {
    unsigned found = 0, room = out ? *count : 0;
    double now = now_s();
    for (int i = 0; i < gpu->processes; i++) {
        struct process *process = &gpu->process[i];
        if (process->kind != kind || now < process->from || now >= process->until) continue;
        if (found < room) {
            memset(&out[found], 0, sizeof *out);
            out[found].pid = process->pid ? process->pid : (unsigned)getpid();
            out[found].bytes = process->bytes;
            out[found].gi = process->gi, out[found].ci = process->ci;
        }
        found++;
    }
    long scripted = scripted_count(symbol, gpu);
    *count = scripted >= 0 ? (unsigned)scripted : found;
    return found > room ? INSUFFICIENT_SIZE : OK;
}

#define RUNNING(symbol, kind)                                                      \
    EXPORT int symbol(device gpu, unsigned *count, struct process_info *out) {     \
        ENTER(gpu);                                                                \
        return running(gpu, __func__, kind, count, out);                           \
    }
RUNNING(nvmlDeviceGetComputeRunningProcesses_v3, 'c')
RUNNING(nvmlDeviceGetComputeRunningProcesses_v2, 'c')
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v3, 'g')
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v2, 'g')
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'm')
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses_v2, 'm')

EXPORT int nvmlDeviceGetProcessUtilization(device gpu, struct process_utilization *out,
                                           unsigned *count, uint64_t since) {
    ENTER(gpu);
    double now = now_s();
    if (!gpu_curve(gpu, "utilization")) return NOT_SUPPORTED;
    unsigned found = 0, room = out ? *count : 0;
    uint64_t stamp = (uint64_t)stamp_us(now);
    for (int i = 0; stamp > since && i < gpu->processes; i++) {
        struct process *process = &gpu->process[i];
        if (!process->sm || now < process->from || now >= process->until) continue;
        if (found < room) {
            memset(&out[found], 0, sizeof *out);
            out[found].pid = process->pid ? process->pid : (unsigned)getpid();
            out[found].time_us = stamp;
            out[found].sm = process->sm, out[found].mem = process->mem;
        }
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : found ? OK : NOT_FOUND;
}

/* Critical errors (Xid) */
struct event_set { struct gpu *gpus[MAX_GPUS]; int count; double seen; };

EXPORT int nvmlEventSetCreate(struct event_set **out) {
    ENTER_SYSTEM();
    *out = calloc(1, sizeof **out);
    (*out)->seen = now_s();
    return OK;
}
EXPORT int nvmlEventSetFree(struct event_set *set) {
    ENTER_SYSTEM();
    free(set);
    return OK;
}
EXPORT int nvmlDeviceGetSupportedEventTypes(device gpu, uint64_t *out) {
    ENTER(gpu);
    *out = 0x1f;
    return OK;
}
EXPORT int nvmlDeviceRegisterEvents(device gpu, uint64_t types, struct event_set *set) {
    ENTER(gpu);
    if (types & 8 && set->count < MAX_GPUS) set->gpus[set->count++] = gpu;
    return OK;
}
EXPORT int nvmlEventSetWait_v2(struct event_set *set, struct event *out, unsigned timeout_ms) {
    ENTER_SYSTEM();
    for (unsigned waited = 0;; waited += 10) {
        double now = now_s(), next = 1e18;
        for (int i = 0; i < set->count; i++) /* the oldest one not yet told */
            for (int k = 0; k < set->gpus[i]->xids; k++) {
                struct xid *xid = &set->gpus[i]->xid[k];
                if (xid->t <= set->seen || xid->t > now || xid->t >= next) continue;
                next = xid->t;
                out->gpu = set->gpus[i], out->type = 8, out->data = xid->code;
                out->gi = out->ci = 0xFFFFFFFFu;
            }
        if (next < 1e18) {
            set->seen = next;
            return OK;
        }
        if (waited >= timeout_ms) return TIMEOUT;
        struct timespec pause = {0, 10000000};
        nanosleep(&pause, 0);
    }
}
