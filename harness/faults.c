/* A shim for LD_PRELOAD: file operations below $FAULT_DIR hang, fail or take long, as $FAULT_STATE
 * says at that moment: "hang", "fail ERRNO", "slow MILLISECONDS", or anything else for none. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static char below[65536]; /* 1 for each descriptor of a file below the folder */

static void rest(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    syscall(SYS_nanosleep, &time, NULL);
}

static int affected(const char *path) {
    const char *folder = getenv("FAULT_DIR");
    char whole[PATH_MAX];
    if (!folder || !path) return 0;
    if (*path != '/') {
        if (syscall(SYS_getcwd, whole, sizeof whole) < 0) return 0;
        if (strlen(whole) + strlen(path) + 2 > sizeof whole) return 0;
        path = strcat(strcat(whole, "/"), path);
    }
    return !strncmp(path, folder, strlen(folder));
}

/* Returns 0 to go on, or -1 with errno set. */
static int fault(void) {
    for (;;) {
        char state[64] = "";
        int file = syscall(SYS_openat, AT_FDCWD, getenv("FAULT_STATE"), O_RDONLY);
        if (file >= 0) {
            if (syscall(SYS_read, file, state, sizeof state - 1) < 0) *state = 0;
            syscall(SYS_close, file);
        }
        if (!strncmp(state, "fail ", 5)) {
            errno = atoi(state + 5);
            return -1;
        }
        if (!strncmp(state, "slow ", 5)) {
            rest(atol(state + 5));
            return 0;
        }
        if (strncmp(state, "hang", 4)) return 0;
        rest(20);
    }
}

#define PLAIN(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define ON_PATH(result, bad, name, declared, given) \
    result name declared {                          \
        if (affected(path) && fault()) return bad;  \
        return PLAIN(name) given;                   \
    }

#define OPENS(name, declared, given)                             \
    int name declared {                                          \
        int mode = 0, found, here = affected(path);              \
        if (flags & (O_CREAT | O_TMPFILE)) {                     \
            va_list more;                                        \
            va_start(more, flags);                               \
            mode = va_arg(more, int);                            \
            va_end(more);                                        \
        }                                                        \
        if (here && fault()) return -1;                          \
        found = PLAIN(name) given;                               \
        if (found >= 0 && found < (int)sizeof below) below[found] = here; \
        return found;                                            \
    }

OPENS(open, (const char *path, int flags, ...), (path, flags, mode))
OPENS(open64, (const char *path, int flags, ...), (path, flags, mode))
OPENS(openat, (int at, const char *path, int flags, ...), (at, path, flags, mode))
OPENS(openat64, (int at, const char *path, int flags, ...), (at, path, flags, mode))
ON_PATH(int, -1, stat, (const char *path, struct stat *to), (path, to))
ON_PATH(int, -1, stat64, (const char *path, struct stat64 *to), (path, to))
ON_PATH(int, -1, lstat, (const char *path, struct stat *to), (path, to))
ON_PATH(int, -1, lstat64, (const char *path, struct stat64 *to), (path, to))
ON_PATH(int, -1, mkdir, (const char *path, mode_t mode), (path, mode))
ON_PATH(int, -1, rmdir, (const char *path), (path))
ON_PATH(int, -1, unlink, (const char *path), (path))
ON_PATH(int, -1, rename, (const char *path, const char *to), (path, to))
ON_PATH(DIR *, NULL, opendir, (const char *path), (path))

ssize_t write(int file, const void *data, size_t size) {
    if (file >= 0 && file < (int)sizeof below && below[file] && fault()) return -1;
    return PLAIN(write)(file, data, size);
}

ssize_t read(int file, void *data, size_t size) {
    if (file >= 0 && file < (int)sizeof below && below[file] && fault()) return -1;
    return PLAIN(read)(file, data, size);
}
