/* What callers share with this library, written down from the binding's own ctypes structures;
 * a test compares sizes and offsets with the installed binding. */
#ifndef ABI_H
#define ABI_H

#include <stdint.h>

struct gpu;
struct gpm_sample;

struct pci_info {
    char legacy[16];
    unsigned domain, bus, slot, device_id, subsystem_id;
    char id[32];
};

struct temperature { unsigned version, sensor; int value; };

struct utilization { unsigned gpu, memory; };

struct memory { uint64_t total, free, used; };

struct memory_v2 { unsigned version; uint64_t total, reserved, free, used; };

struct bar1 { uint64_t total, free, used; };

union value {
    double d;
    unsigned ui;
    unsigned long ul;
    uint64_t ull;
    int64_t sll;
    int si;
    unsigned short us;
};

struct sample { uint64_t time_us; union value value; };

struct field_value {
    unsigned id, scope;
    int64_t time_us, latency_us;
    unsigned type;
    int code;
    union value value;
};

struct gpm_metric {
    unsigned id;
    int code;
    double value;
    const char *short_name, *long_name, *unit;
};

struct gpm_get {
    unsigned version, count;
    struct gpm_sample *first, *second;
    struct gpm_metric metric[1]; /* as many as the caller allocated */
};

struct gpm_support { unsigned version, supported; };

struct process_info { unsigned pid; uint64_t bytes; unsigned gi, ci; };

struct process_utilization { unsigned pid; uint64_t time_us; unsigned sm, mem, enc, dec; };

struct event { struct gpu *gpu; uint64_t type, data; unsigned gi, ci; };

#endif
