/* An LD_PRELOAD library that appends each change of a file below $POWER_CUT_ROOT to the file $POWER_CUT_LOG.
 *
 * A record is a line "KIND MODE INODE NUMBER LENGTH LENGTH LENGTH\n", two paths and data of these lengths. The real call
 * is made while a lock on the log is held, so the records of all processes are in the order of their calls. The log is
 * opened for each record: programs close descriptors that they do not know. Real calls are system calls, so nothing
 * here calls itself, and only the stack is written: the child of a vfork may call any of it.
 *
 * glibc's stdio does not call open() and write() through the table of symbols. What it wrote is recorded when its
 * stream or descriptor is closed, replaced or synced: record C has the whole content.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[PATH_MAX], log_path[PATH_MAX];
static size_t root_length;

struct turn {
	int log;
	sigset_t mask;
};

__attribute__((constructor)) static void set_up(void)
{
	const char *log = getenv("POWER_CUT_LOG"), *below = getenv("POWER_CUT_ROOT");

	if (log && below && strlen(log) < PATH_MAX && realpath(below, root)) {
		strcpy(log_path, log);
		root_length = strlen(root);
	}
}

static int is_below(const char *path)
{
	return root_length && !strncmp(path, root, root_length) && path[root_length] == '/';
}

/* The log's lock. No signal is handled, and so nothing jumps out, until it is released. */
static struct turn take_turn(void)
{
	struct turn turn;
	sigset_t all;

	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &turn.mask);
	turn.log = syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	while (flock(turn.log, LOCK_EX) == -1 && errno == EINTR)
		;
	return turn;
}

/* Explicitly unlocked: a child that was forked meanwhile has the descriptor, too. */
static void end_turn(struct turn turn, int error)
{
	flock(turn.log, LOCK_UN);
	syscall(SYS_close, turn.log);
	sigprocmask(SIG_SETMASK, &turn.mask, NULL);
	errno = error;
}

static void append(struct turn turn, char kind, const struct stat *facts, long long number, const char *path,
		   const char *other, const void *data, size_t size)
{
	char head[160];
	struct iovec parts[4] = {{head, 0}, {(void *)path, strlen(path)}, {(void *)other, strlen(other)}, {(void *)data, size}};

	parts[0].iov_len = snprintf(head, sizeof head, "%c %u %llu %lld %zu %zu %zu\n", kind, facts ? facts->st_mode : 0,
				    facts ? (unsigned long long)facts->st_ino : 0, number, parts[1].iov_len,
				    parts[2].iov_len, size);
	if (syscall(SYS_writev, turn.log, parts, 4) != (long)(parts[0].iov_len + parts[1].iov_len + parts[2].iov_len + size))
		abort();
}

/* The path of an open descriptor if it is below the root; O_TMPFILE and the like have none. */
static int path_of(int fd, char *path, struct stat *facts)
{
	char link[40];
	ssize_t length;

	if (!root_length || fstat(fd, facts) || !(S_ISREG(facts->st_mode) || S_ISDIR(facts->st_mode)))
		return 0;
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	length = readlink(link, path, PATH_MAX - 1);
	if (length < 0)
		return 0;
	path[length] = 0;
	return is_below(path) || (S_ISDIR(facts->st_mode) && !strcmp(path, root));
}

/* The absolute path of a name: its folder's links are followed, its own is not. */
static int resolve(int folder, const char *name, char *path)
{
	char given[2 * PATH_MAX], real[PATH_MAX], *last;
	size_t length;

	if (!root_length || !name || strlen(name) >= PATH_MAX)
		return 0;
	if (name[0] == '/')
		strcpy(given, name);
	else if (folder == AT_FDCWD)
		sprintf(given, "./%s", name);
	else
		sprintf(given, "/proc/self/fd/%d/%s", folder, name);
	for (length = strlen(given); length > 1 && given[length - 1] == '/'; length--)
		given[length - 1] = 0;
	last = strrchr(given, '/');
	*last = 0;
	if (!realpath(last == given ? "/" : given, real) || strlen(real) + strlen(last + 1) + 2 > PATH_MAX)
		return 0;
	sprintf(path, "%s/%s", real, last + 1);
	return is_below(path);
}

/* Record W: so many bytes at an offset, read back; C: all there is. */
static void append_content(struct turn turn, char kind, int fd, const char *path, const struct stat *facts, off_t offset,
			   size_t size)
{
	char link[40], *data = NULL;
	size_t there = 0;
	ssize_t more;
	int again;

	if (size) {
		snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
		again = syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
		data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (again < 0 || data == MAP_FAILED)
			abort();
		while (there < size && (more = pread(again, data + there, size - there, offset + there)) > 0)
			there += more;
		syscall(SYS_close, again);
	}
	append(turn, kind, facts, offset, path, "", data, there);
	if (size)
		munmap(data, size);
}

static void record_content(int fd)
{
	char path[PATH_MAX];
	struct stat facts;
	int error = errno, flags = fcntl(fd, F_GETFL);

	if (flags != -1 && (flags & O_ACCMODE) != O_RDONLY && path_of(fd, path, &facts) && S_ISREG(facts.st_mode)) {
		struct turn turn = take_turn();

		fstat(fd, &facts);
		append_content(turn, 'C', fd, path, &facts, 0, facts.st_size);
		end_turn(turn, error);
	}
	errno = error;
}

/* ------------------------------------------------------------------------------------------------ names */
static int do_open(int folder, const char *name, int flags, int mode)
{
	char path[PATH_MAX];
	struct stat facts;
	struct turn turn;
	int fd;

	if (!(flags & (O_CREAT | O_TRUNC)) || !resolve(folder, name, path))
		return syscall(SYS_openat, folder, name, flags, mode);
	turn = take_turn();
	fd = syscall(SYS_openat, folder, name, flags, mode);
	if (fd >= 0 && path_of(fd, path, &facts))
		append(turn, 'O', &facts, !!(flags & O_TRUNC), path, "", NULL, 0);
	end_turn(turn, errno);
	return fd;
}

#define MODE_OF(last) \
	int mode = 0; \
	if (flags & (O_CREAT | O_TMPFILE)) { \
		va_list more; \
		va_start(more, last); \
		mode = va_arg(more, int); \
		va_end(more); \
	}

int open(const char *name, int flags, ...)
{
	MODE_OF(flags)
	return do_open(AT_FDCWD, name, flags, mode);
}

int openat(int folder, const char *name, int flags, ...)
{
	MODE_OF(flags)
	return do_open(folder, name, flags, mode);
}

int creat(const char *name, mode_t mode) { return do_open(AT_FDCWD, name, O_WRONLY | O_CREAT | O_TRUNC, mode); }
int __open_2(const char *name, int flags) { return do_open(AT_FDCWD, name, flags, 0); }
int __openat_2(int folder, const char *name, int flags) { return do_open(folder, name, flags, 0); }

/* A call that changes names: the paths are recorded if one of them is below the root and the call succeeds. */
#define CHANGES_NAMES(kind, first, second, number, call) \
	char path[PATH_MAX] = "", other[PATH_MAX] = ""; \
	struct stat facts; \
	struct turn turn; \
	int result, ours = first; \
	ours = second || ours; \
	if (!ours) \
		return call; \
	turn = take_turn(); \
	result = call; \
	if (!result) \
		append(turn, kind, lstat(*other ? other : path, &facts) ? NULL : &facts, number, path, other, NULL, 0); \
	end_turn(turn, errno); \
	return result;

int renameat2(int from, const char *old, int to, const char *new, unsigned flags)
{
	CHANGES_NAMES('R', resolve(from, old, path), resolve(to, new, other), flags,
		      syscall(SYS_renameat2, from, old, to, new, flags))
}

int renameat(int from, const char *old, int to, const char *new) { return renameat2(from, old, to, new, 0); }
int rename(const char *old, const char *new) { return renameat2(AT_FDCWD, old, AT_FDCWD, new, 0); }

int linkat(int from, const char *old, int to, const char *new, int flags)
{
	CHANGES_NAMES('L', resolve(from, old, path), resolve(to, new, other), flags,
		      syscall(SYS_linkat, from, old, to, new, flags))
}

int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }

int symlinkat(const char *target, int to, const char *new)
{
	CHANGES_NAMES('S', (snprintf(path, sizeof path, "%s", target), 0), resolve(to, new, other), 0,
		      syscall(SYS_symlinkat, target, to, new))
}

int symlink(const char *target, const char *new) { return symlinkat(target, AT_FDCWD, new); }

int unlinkat(int folder, const char *name, int flags)
{
	CHANGES_NAMES('U', resolve(folder, name, path), 0, flags, syscall(SYS_unlinkat, folder, name, flags))
}

int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

int mkdirat(int folder, const char *name, mode_t mode)
{
	CHANGES_NAMES('M', resolve(folder, name, path), 0, 0, syscall(SYS_mkdirat, folder, name, mode))
}

int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

int fchmodat(int folder, const char *name, mode_t mode, int flags)
{
	CHANGES_NAMES('P', resolve(folder, name, path), 0, flags, syscall(SYS_fchmodat, folder, name, mode))
}

int chmod(const char *name, mode_t mode) { return fchmodat(AT_FDCWD, name, mode, 0); }

/* --------------------------------------------------------------------------------------------- contents */
/* A call that changes an open file. AFTER appends the record; it knows ``result``, ``path`` and ``facts``. */
#define CHANGES_FILE(type, fd, call, after) \
	char path[PATH_MAX]; \
	struct stat facts; \
	struct turn turn; \
	type result; \
	if (!path_of(fd, path, &facts)) \
		return call; \
	turn = take_turn(); \
	result = call; \
	int error = errno; \
	if (!fstat(fd, &facts)) { \
		after; \
	} \
	end_turn(turn, error); \
	return result;

#define WRITES(fd, call) \
	CHANGES_FILE(ssize_t, fd, call, if (result > 0) append_content(turn, 'W', fd, path, &facts, \
		     lseek(fd, 0, SEEK_CUR) - result, result))
#define WRITES_AT(fd, offset, call) \
	CHANGES_FILE(ssize_t, fd, call, if (result > 0) append_content(turn, 'W', fd, path, &facts, offset, result))
#define SYNCS(fd, call) \
	CHANGES_FILE(int, fd, call, if (S_ISREG(facts.st_mode)) append_content(turn, 'C', fd, path, &facts, 0, facts.st_size); \
		     append(turn, 'F', &facts, 0, path, "", NULL, 0))
#define RESIZES(fd, call) CHANGES_FILE(int, fd, call, append(turn, 'T', &facts, facts.st_size, path, "", NULL, 0))

ssize_t write(int fd, const void *data, size_t size) { WRITES(fd, syscall(SYS_write, fd, data, size)) }
ssize_t writev(int fd, const struct iovec *parts, int count) { WRITES(fd, syscall(SYS_writev, fd, parts, count)) }
ssize_t sendfile(int fd, int from, off_t *at, size_t size) { WRITES(fd, syscall(SYS_sendfile, fd, from, at, size)) }

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
	WRITES_AT(fd, offset, syscall(SYS_pwrite64, fd, data, size, offset))
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset)
{
	WRITES_AT(fd, offset, syscall(SYS_pwritev, fd, parts, count, offset, 0))
}

ssize_t copy_file_range(int from, off_t *at, int fd, off_t *to, size_t size, unsigned flags)
{
	WRITES_AT(fd, (to ? *to : lseek(fd, 0, SEEK_CUR)) - result, syscall(SYS_copy_file_range, from, at, fd, to, size, flags))
}

int fsync(int fd) { SYNCS(fd, syscall(SYS_fsync, fd)) }
int fdatasync(int fd) { SYNCS(fd, syscall(SYS_fdatasync, fd)) }
int ftruncate(int fd, off_t size) { RESIZES(fd, syscall(SYS_ftruncate, fd, size)) }
int fallocate(int fd, int mode, off_t from, off_t size) { RESIZES(fd, syscall(SYS_fallocate, fd, mode, from, size)) }
int posix_fallocate(int fd, off_t from, off_t size) { return fallocate(fd, 0, from, size) ? errno : 0; }

int fchmod(int fd, mode_t mode)
{
	CHANGES_FILE(int, fd, syscall(SYS_fchmod, fd, mode), append(turn, 'P', &facts, 0, path, "", NULL, 0))
}

/* What a shell's own echo wrote in a part of a script that is a process. */
__attribute__((destructor)) static void record_output(void)
{
	record_content(STDOUT_FILENO);
}

int close(int fd)
{
	record_content(fd);
	return syscall(SYS_close, fd);
}

int dup3(int from, int to, int flags)
{
	record_content(to);
	return syscall(SYS_dup3, from, to, flags);
}

int dup2(int from, int to) { return from == to ? (fcntl(from, F_GETFD) < 0 ? -1 : to) : dup3(from, to, 0); }

FILE *fopen(const char *name, const char *how)
{
	FILE *(*real)(const char *, const char *) = dlsym(RTLD_NEXT, "fopen");
	char path[PATH_MAX];
	struct stat facts;
	struct turn turn;
	FILE *stream;

	if (*how == 'r' || !resolve(AT_FDCWD, name, path))
		return real(name, how);
	turn = take_turn();
	stream = real(name, how);
	if (stream && path_of(fileno(stream), path, &facts))
		append(turn, 'O', &facts, *how == 'w', path, "", NULL, 0);
	end_turn(turn, errno);
	return stream;
}

int fclose(FILE *stream)
{
	int (*real)(FILE *) = dlsym(RTLD_NEXT, "fclose");

	fflush(stream);
	record_content(fileno(stream));
	return real(stream);
}

#define SAME(type, other, name, ...) type other(__VA_ARGS__) __attribute__((alias(#name)));
SAME(int, open64, open, const char *, int, ...)
SAME(FILE *, fopen64, fopen, const char *, const char *)
SAME(int, openat64, openat, int, const char *, int, ...)
SAME(int, creat64, creat, const char *, mode_t)
SAME(int, __open64_2, __open_2, const char *, int)
SAME(int, __openat64_2, __openat_2, int, const char *, int)
SAME(ssize_t, sendfile64, sendfile, int, int, off_t *, size_t)
SAME(ssize_t, pwrite64, pwrite, int, const void *, size_t, off_t)
SAME(ssize_t, pwritev64, pwritev, int, const struct iovec *, int, off_t)
SAME(int, ftruncate64, ftruncate, int, off_t)
SAME(int, fallocate64, fallocate, int, int, off_t, off_t)
SAME(int, posix_fallocate64, posix_fallocate, int, off_t, off_t)
