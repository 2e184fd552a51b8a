/* LD_PRELOAD layer: below $CASEFOLD_ROOT a name means the file that has it in another case, as on a Mac's disk.
 *
 * Each call that takes a path gets the spelling on the disk, if there is one. ASCII letters only. What the C library
 * does inside itself (glob, nftw) and static programs are not reached. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))real(#name))
static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

static int exists(int dir, const char *path) {
    struct stat unused;
    return syscall(SYS_newfstatat, dir, path, &unused, AT_SYMLINK_NOFOLLOW) == 0;
}

static int below_root(int dir, const char *path) {
    const char *root = getenv("CASEFOLD_ROOT");
    char place[PATH_MAX], link[64];
    if (!root) return 0;
    if (path[0] != '/') {
        snprintf(link, sizeof link, dir == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", dir);
        ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, place, sizeof place - 1);
        if (n < 0) return 0;
        place[n] = 0;
        path = place;
    }
    return strncmp(path, root, strlen(root)) == 0;
}

/* Appends to `out`, a path so far, the name in that folder that `name` means. */
static int add(int dir, char *out, const char *name, size_t length) {
    size_t end = strlen(out);
    if (end + length + 2 >= PATH_MAX) return 0;
    memcpy(out + end, name, length);
    out[end + length] = 0;
    if (exists(dir, out)) return 1;
    int letters = strpbrk(out + end, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") != NULL;
    out[end] = 0;
    if (!letters) return 0; /* it has no other spelling */
    int fd = syscall(SYS_openat, dir, end ? out : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    int found = 0;
    for (struct dirent *entry; folder && !found && (entry = readdir(folder));)
        if (strlen(entry->d_name) == length && strncasecmp(entry->d_name, name, length) == 0) {
            strcpy(out + end, entry->d_name);
            found = 1;
        }
    if (folder) closedir(folder);
    return found;
}

static const char *fold(int dir, const char *path, char *out) {
    if (!path || !*path || exists(dir, path) || !below_root(dir, path)) return path;
    out[0] = 0;
    for (const char *at = path; *at;) {
        size_t length = strspn(at, "/");
        if (strlen(out) + length >= PATH_MAX) return path;
        strncat(out, at, length);
        at += length;
        length = strcspn(at, "/");
        if (length && !add(dir, out, at, length)) {
            if (strlen(out) + strlen(at) >= PATH_MAX) return path;
            return strcat(out, at);
        }
        at += length;
    }
    return out;
}

#define BUFFER char buffer[PATH_MAX]
#define HERE(path) fold(AT_FDCWD, path, buffer)
#define AT(dir, path) fold(dir, path, buffer)
#define MODE(flags) mode_t mode = 0; if ((flags) & (O_CREAT | __O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }

int open(const char *p, int f, ...) { BUFFER; MODE(f) return REAL(open)(HERE(p), f, mode); }
int open64(const char *p, int f, ...) { BUFFER; MODE(f) return REAL(open64)(HERE(p), f, mode); }
int openat(int d, const char *p, int f, ...) { BUFFER; MODE(f) return REAL(openat)(d, AT(d, p), f, mode); }
int openat64(int d, const char *p, int f, ...) { BUFFER; MODE(f) return REAL(openat64)(d, AT(d, p), f, mode); }
FILE *fopen(const char *p, const char *m) { BUFFER; return REAL(fopen)(HERE(p), m); }
FILE *fopen64(const char *p, const char *m) { BUFFER; return REAL(fopen64)(HERE(p), m); }
DIR *opendir(const char *p) { BUFFER; return REAL(opendir)(HERE(p)); }
int stat(const char *p, struct stat *s) { BUFFER; return REAL(stat)(HERE(p), s); }
int stat64(const char *p, struct stat64 *s) { BUFFER; return REAL(stat64)(HERE(p), s); }
int lstat(const char *p, struct stat *s) { BUFFER; return REAL(lstat)(HERE(p), s); }
int lstat64(const char *p, struct stat64 *s) { BUFFER; return REAL(lstat64)(HERE(p), s); }
int fstatat(int d, const char *p, struct stat *s, int f) { BUFFER; return REAL(fstatat)(d, AT(d, p), s, f); }
int fstatat64(int d, const char *p, struct stat64 *s, int f) { BUFFER; return REAL(fstatat64)(d, AT(d, p), s, f); }
int statx(int d, const char *p, int f, unsigned m, struct statx *s) { BUFFER; return REAL(statx)(d, AT(d, p), f, m, s); }
int access(const char *p, int m) { BUFFER; return REAL(access)(HERE(p), m); }
int faccessat(int d, const char *p, int m, int f) { BUFFER; return REAL(faccessat)(d, AT(d, p), m, f); }
int chdir(const char *p) { BUFFER; return REAL(chdir)(HERE(p)); }
int mkdir(const char *p, mode_t m) { BUFFER; return REAL(mkdir)(HERE(p), m); }
int mkdirat(int d, const char *p, mode_t m) { BUFFER; return REAL(mkdirat)(d, AT(d, p), m); }
int rmdir(const char *p) { BUFFER; return REAL(rmdir)(HERE(p)); }
int unlink(const char *p) { BUFFER; return REAL(unlink)(HERE(p)); }
int unlinkat(int d, const char *p, int f) { BUFFER; return REAL(unlinkat)(d, AT(d, p), f); }
int chmod(const char *p, mode_t m) { BUFFER; return REAL(chmod)(HERE(p), m); }
int fchmodat(int d, const char *p, mode_t m, int f) { BUFFER; return REAL(fchmodat)(d, AT(d, p), m, f); }
int truncate(const char *p, off_t n) { BUFFER; return REAL(truncate)(HERE(p), n); }
int utimensat(int d, const char *p, const struct timespec t[2], int f) { BUFFER; return REAL(utimensat)(d, AT(d, p), t, f); }
ssize_t readlink(const char *p, char *b, size_t n) { BUFFER; return REAL(readlink)(HERE(p), b, n); }
ssize_t readlinkat(int d, const char *p, char *b, size_t n) { BUFFER; return REAL(readlinkat)(d, AT(d, p), b, n); }
int symlink(const char *to, const char *p) { BUFFER; return REAL(symlink)(to, HERE(p)); }
int symlinkat(const char *to, int d, const char *p) { BUFFER; return REAL(symlinkat)(to, d, AT(d, p)); }
int mkfifo(const char *p, mode_t m) { BUFFER; return REAL(mkfifo)(HERE(p), m); }

/* A new name that differs from the old one by case alone renames the file. */
static const char *target(int d, const char *from, int e, const char *to, char *out) {
    struct stat a, b;
    const char *folded = fold(e, to, out);
    if (folded == to || syscall(SYS_newfstatat, d, from, &a, AT_SYMLINK_NOFOLLOW) ||
        syscall(SYS_newfstatat, e, folded, &b, AT_SYMLINK_NOFOLLOW))
        return folded;
    if (a.st_ino == b.st_ino) {
        const char *name = strrchr(to, '/');
        char *old = strrchr(out, '/');
        strcpy(old ? old + 1 : out, name ? name + 1 : to);
    }
    return folded;
}
int rename(const char *p, const char *q) {
    BUFFER; char other[PATH_MAX]; const char *from = HERE(p);
    return REAL(rename)(from, target(AT_FDCWD, from, AT_FDCWD, q, other));
}
int renameat(int d, const char *p, int e, const char *q) {
    BUFFER; char other[PATH_MAX]; const char *from = AT(d, p);
    return REAL(renameat)(d, from, e, target(d, from, e, q, other));
}
int renameat2(int d, const char *p, int e, const char *q, unsigned f) {
    BUFFER; char other[PATH_MAX]; const char *from = AT(d, p);
    return REAL(renameat2)(d, from, e, target(d, from, e, q, other), f);
}
int link(const char *p, const char *q) { BUFFER; char other[PATH_MAX]; return REAL(link)(HERE(p), fold(AT_FDCWD, q, other)); }
int linkat(int d, const char *p, int e, const char *q, int f) {
    BUFFER; char other[PATH_MAX];
    return REAL(linkat)(d, AT(d, p), e, fold(e, q, other), f);
}
