/* Stands in for pyxis in tests: srun's options --container-* with its names, and a container that is
 * no more than a mount namespace and a root folder, whose path is the content of the image's file. */
#define _GNU_SOURCE
#include <sched.h>
#include <slurm/spank.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

SPANK_PLUGIN(pyxis, 1)

static char *given[4]; /* image, mounts, workdir, no-mount-home */

static int keep(int which, const char *value, int remote)
{
	given[which] = strdup(value ? value : "");
	return 0;
}

static struct spank_option known[] = {
	{"container-image", "FILE", "stand-in", 1, 0, keep},
	{"container-mounts", "SOURCE:TARGET[:ro],...", "stand-in", 1, 1, keep},
	{"container-workdir", "FOLDER", "stand-in", 1, 2, keep},
	{"no-container-mount-home", NULL, "stand-in", 0, 3, keep},
};

int slurm_spank_init(spank_t job, int count, char **words)
{
	for (int i = 0; i < 4; i++)
		spank_option_register(job, &known[i]);
	return 0;
}

static void bind(const char *source, const char *root, const char *target)
{
	char path[8192], make[9000];
	snprintf(path, sizeof path, "%s%s", root, target);
	snprintf(make, sizeof make, "mkdir -p '%s'", path);
	if (system(make) || mount(source, path, NULL, MS_BIND | MS_REC, NULL))
		_exit(1);
}

int slurm_spank_task_init(spank_t job, int count, char **words)
{
	char root[4096] = "", *rest, *source, *target;
	FILE *file = given[0] ? fopen(given[0], "r") : NULL;
	if (!given[0])
		return 0;
	if (!file || fscanf(file, "%4095s", root) != 1) {
		slurm_spank_log("pyxis: failed to create container filesystem");
		return -1;
	}
	fclose(file);
	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return -1;
	bind("/dev", root, "/dev");
	bind("/proc", root, "/proc");
	for (source = strtok_r(given[1], ",", &rest); source; source = strtok_r(NULL, ",", &rest)) {
		target = strchr(source, ':');
		*target++ = 0;
		if (strchr(target, ':'))
			*strchr(target, ':') = 0;
		bind(source, root, target);
	}
	return chroot(root) || chdir(given[2]) ? -1 : 0;
}
