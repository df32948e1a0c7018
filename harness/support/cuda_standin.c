/* A libcuda.so.1 for tests: lists the devices named in CUDA_STANDIN, "PCI=uuid,PCI=uuid". Ours.
 * CUDA_STANDIN_INIT is what cuInit returns; CUDA_STANDIN_UP=1: the process has called it already. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int started;

static const char *entry(int ordinal) {
    const char *at = getenv("CUDA_STANDIN");
    while (at && *at && ordinal-- > 0) at = strchr(at, ',') ? strchr(at, ',') + 1 : "";
    return at && *at ? at : 0;
}

static int up(void) { return started || getenv("CUDA_STANDIN_UP"); }

int cuInit(unsigned flags) {
    const char *code = getenv("CUDA_STANDIN_INIT");
    started = 1;
    return flags ? 1 : code ? atoi(code) : 0;
}

int cuDeviceGetCount(int *count) {
    if (!up()) return 3;
    *count = 0;
    while (entry(*count)) ++*count;
    return 0;
}

int cuDeviceGet(int *device, int ordinal) {
    if (!up()) return 3;
    *device = 100 + ordinal; /* a handle, not the ordinal */
    return entry(ordinal) ? 0 : 101;
}

int cuDeviceGetPCIBusId(char *out, int size, int device) {
    const char *text = entry(device - 100);
    if (!up() || !text) return 101;
    snprintf(out, (size_t)size, "%.*s", (int)strcspn(text, "="), text);
    return 0;
}

int cuDeviceGetUuid_v2(unsigned char *out, int device) {
    const char *text = entry(device - 100);
    if (!up() || !text) return 101;
    text += strcspn(text, "=") + 1;
    for (int i = 0; i < 16; i++) {
        unsigned byte;
        while (*text == '-') text++;
        if (sscanf(text, "%2x", &byte) != 1) return 999;
        out[i] = (unsigned char)byte;
        text += 2;
    }
    return 0;
}
