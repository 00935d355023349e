/*
 * Shifts the wall clock of one pod, for tests: a container of Kubernetes has the clock of its node, and Linux has no
 * namespace for it. The image of the tests preloads this file into each process (/etc/ld.so.preload).
 *
 * The containers of a pod share /dev/shm. Its file "onewriter-e2e-clock" has the shift in whole seconds, as eight bytes
 * in the byte order of the machine. Only the wall clock is shifted. CLOCK_REALTIME_COARSE and the monotonic clocks stay.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SHIFT_FILE "/dev/shm/onewriter-e2e-clock"
#define IS_WALL_SECONDS 1000000000 /* no machine runs for so long: a larger time is by the wall clock */

static const volatile int64_t none = 0;
static const volatile int64_t *shift = &none;

__attribute__((constructor)) static void begin(void)
{
    int before = errno, file = open(SHIFT_FILE, O_RDWR | O_CLOEXEC);
    if (file < 0) {
        file = open(SHIFT_FILE, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (file >= 0)
            fchmod(file, 0666);
    }
    struct stat found;
    if (file >= 0 && fstat(file, &found) == 0 &&
        (found.st_size >= (off_t)sizeof(int64_t) || ftruncate(file, sizeof(int64_t)) == 0)) {
        void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
        if (mapped != MAP_FAILED)
            shift = mapped;
    }
    if (file >= 0)
        close(file);
    errno = before;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL)
        real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real != NULL ? real(clock, now) : (int)syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && clock == CLOCK_REALTIME)
        now->tv_sec += *shift;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec found;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now)
{
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now != NULL)
        *now = found.tv_sec;
    return found.tv_sec;
}

/* The kernel, which waits, has the clock of the machine. */
int pthread_cond_timedwait(pthread_cond_t *restrict one, pthread_mutex_t *restrict lock,
                           const struct timespec *restrict until)
{
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (real == NULL)
        real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec unshifted = *until;
    if (until->tv_sec > IS_WALL_SECONDS)
        unshifted.tv_sec -= *shift;
    return real(one, lock, &unshifted);
}
