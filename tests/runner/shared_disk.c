// A disk of a network whose system calls fail, for a process that loads this first:
// LD_PRELOAD=shared_disk.so FAULTS='flock 38 0 /run; rename 26 2 /manifest.json'
//
// A fault is a call, the errno that it gives, how often (0: always), and a part of the
// path of the file; `$` is its end. `clock` is none: its number is added to the seconds
// of the clock. FAULTS may change while the process runs; then the calls are counted
// anew. The file FAULTS_MET gets a line for each call that fails.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_FAULTS 16
#define MAX_LETTERS 4096

static struct {
  char call[32], part[256];
  int number, times;
} faults[MAX_FAULTS];
static int num_faults;
static char text[MAX_LETTERS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void read_faults(void) {
  const char *given = getenv("FAULTS");
  if (!given) given = "";
  if (!strncmp(given, text, MAX_LETTERS)) return;
  snprintf(text, MAX_LETTERS, "%s", given);
  num_faults = 0;
  for (const char *at = text; num_faults < MAX_FAULTS; num_faults++) {
    int length = 0;
    if (sscanf(at, " %31s %d %d %255[^;]%n", faults[num_faults].call,
               &faults[num_faults].number, &faults[num_faults].times,
               faults[num_faults].part, &length) < 4)
      break;
    at += length;
    if (*at == ';') at++;
  }
  for (int i = 0; i < num_faults; i++)
    if (!faults[i].times) faults[i].times = -1;  // always
}

// Whether a path has the part; '$' at the end of the part is the path's end.
static int is_part(const char *part, const char *path) {
  size_t length = strlen(part), path_length = strlen(path);
  if (part[length - 1] != '$') return strstr(path, part) != NULL;
  length--;
  return path_length >= length && !strncmp(path + path_length - length, part, length);
}

// Appends a word to the file that the environment names.
static void note(const char *call) {
  const char *name = getenv("FAULTS_MET");
  if (!name) return;
  int descriptor = syscall(SYS_open, name, O_WRONLY | O_CREAT | O_APPEND, 0644);
  syscall(SYS_write, descriptor, call, strlen(call));
  syscall(SYS_write, descriptor, "\n", 1);
  syscall(SYS_close, descriptor);
}

// The errno with which the call on the path fails; 0 if it does not fail.
static int fails(const char *call, const char *path) {
  int number = 0;
  pthread_mutex_lock(&mutex);
  read_faults();
  for (int i = 0; i < num_faults && !number; i++) {
    if (strcmp(faults[i].call, call) || !faults[i].times) continue;
    if (!is_part(faults[i].part, path)) continue;
    if (faults[i].times > 0) faults[i].times--;
    number = faults[i].number;
    note(call);
  }
  pthread_mutex_unlock(&mutex);
  return number;
}

static int fails_on(const char *call, int descriptor) {
  char link[64], path[MAX_LETTERS];
  int error_before = errno;
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, path, sizeof path - 1);
  errno = error_before;
  if (length < 0) return 0;
  path[length] = 0;
  return fails(call, path);
}

#define REAL(result, name, ...)                          \
  static result (*real)(__VA_ARGS__);                    \
  if (!real) real = dlsym(RTLD_NEXT, #name)
#define FAIL_IF(number)                                  \
  do {                                                   \
    int number_ = (number);                              \
    if (number_) { errno = number_; return -1; }         \
  } while (0)

int flock(int descriptor, int operation) {
  REAL(int, flock, int, int);
  FAIL_IF(fails_on("flock", descriptor));
  return real(descriptor, operation);
}

static int lock_or_call(int (*real)(int, int, ...), int descriptor, int command,
                        void *argument) {
  if (command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK ||
      command == F_OFD_SETLKW)
    FAIL_IF(fails_on("fcntl", descriptor));
  return real(descriptor, command, argument);
}

#define FCNTL(name)                                      \
  int name(int descriptor, int command, ...) {           \
    REAL(int, name, int, int, ...);                      \
    va_list arguments;                                   \
    va_start(arguments, command);                        \
    void *argument = va_arg(arguments, void *);          \
    va_end(arguments);                                   \
    return lock_or_call(real, descriptor, command, argument); \
  }
FCNTL(fcntl)
FCNTL(fcntl64)

int fsync(int descriptor) {
  REAL(int, fsync, int);
  struct stat status;
  int is_folder = !fstat(descriptor, &status) && S_ISDIR(status.st_mode);
  FAIL_IF(fails_on(is_folder ? "fsync_folder" : "fsync_file", descriptor));
  return real(descriptor);
}

int rename(const char *source, const char *target) {
  REAL(int, rename, const char *, const char *);
  FAIL_IF(fails("rename", target));
  return real(source, target);
}

// As a server reports a quota: the file is closed all the same.
int close(int descriptor) {
  REAL(int, close, int);
  int is_read_only = (fcntl(descriptor, F_GETFL) & O_ACCMODE) == O_RDONLY;
  int number = is_read_only ? 0 : fails_on("close", descriptor);
  int result = real(descriptor);
  FAIL_IF(number);
  return result;
}

#define WRITE(name, ...)                                 \
  ssize_t name(int descriptor, const void *data, size_t size, ##__VA_ARGS__)
WRITE(write) {
  REAL(ssize_t, write, int, const void *, size_t);
  FAIL_IF(fails_on("write", descriptor));
  return real(descriptor, data, size);
}
WRITE(pwrite64, off64_t offset) {
  REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t);
  FAIL_IF(fails_on("write", descriptor));
  return real(descriptor, data, size, offset);
}

ssize_t read(int descriptor, void *data, size_t size) {
  REAL(ssize_t, read, int, void *, size_t);
  FAIL_IF(fails_on("read", descriptor));
  return real(descriptor, data, size);
}

#define OPEN(name)                                       \
  int name(const char *path, int flags, ...) {           \
    REAL(int, name, const char *, int, ...);             \
    va_list arguments;                                   \
    va_start(arguments, flags);                          \
    int mode = va_arg(arguments, int);                   \
    va_end(arguments);                                   \
    FAIL_IF(fails("open", path));                        \
    return real(path, flags, mode);                      \
  }
OPEN(open)
OPEN(open64)

#define STAT(name, type)                                 \
  int name(const char *path, struct type *status) {      \
    REAL(int, name, const char *, struct type *);        \
    FAIL_IF(fails("stat", path));                        \
    return real(path, status);                           \
  }
STAT(stat, stat)
STAT(stat64, stat64)

int clock_gettime(clockid_t clock, struct timespec *time) {
  REAL(int, clock_gettime, clockid_t, struct timespec *);
  int result = real(clock, time);
  if (clock == CLOCK_REALTIME) time->tv_sec += fails("clock", "clock");
  return result;
}
