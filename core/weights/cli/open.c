#include "core/weights/cli/open.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/weights/cli/print.h"
#include "core/weights/store/store.h"

enum { SECONDS_TO_LOOK = 10 };

/* The user's own folder; false when the environment names none. */
static bool default_root(char root[PATH_MAX])
{
    const char *named = getenv("HOSTLANE_WEIGHTS");
    const char *data = getenv("XDG_DATA_HOME");
    const char *home = getenv("HOME");
    int length;
    if (named && named[0])
        length = snprintf(root, PATH_MAX, "%s", named);
    else if (geteuid() == 0)
        length = snprintf(root, PATH_MAX, "/var/lib/hostlane/weights");
    else if (data && data[0] == '/')
        length = snprintf(root, PATH_MAX, "%s/hostlane/weights", data);
    else if (home && home[0] == '/')
        length = snprintf(root, PATH_MAX, "%s/.local/share/hostlane/weights", home);
    else
        return false;
    return length < PATH_MAX;
}

/* A path that begins at the root: that of the working folder before a relative one. */
static bool make_absolute(char root[PATH_MAX])
{
    char folder[PATH_MAX], joined[PATH_MAX];
    if (root[0] == '/')
        return true;
    if (!getcwd(folder, sizeof folder) ||
        snprintf(joined, sizeof joined, "%s/%s", folder, root) >= (int)sizeof joined)
        return false;
    memcpy(root, joined, strlen(joined) + 1);
    return true;
}

/* The parents of a default root, which nobody has made by hand. Whether that works shows when the store is
 * opened. */
static void make_parents(const char *root)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", root);
    for (char *at = path + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        if (mkdir(path, 0755) != 0 && errno != EEXIST)
            return;
        *at = '/';
    }
}

/* 0: a domain; ENOENT or ENOTDIR: none; another: it cannot be seen from here. A domain that exists keeps its
 * settings: only those that were given are compared with it. */
static int look_for_domain(const char *root)
{
    char path[PATH_MAX];
    struct stat st;
    if (snprintf(path, sizeof path, "%s/domain.json", root) >= (int)sizeof path)
        return ENAMETOOLONG;
    return stat(path, &st) == 0 ? 0 : errno;
}

static bool belongs_to_a_store(const char *name)
{
    /* lost+found: the store may be a file system's own root. */
    static const char *const names[] = {".",     "..",         "artifacts", "deny",
                                        "locks", "quarantine", "tmp",       "lost+found"};
    if (strncmp(name, "domain", strlen("domain")) == 0)
        return true;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* A folder of other things is not made a store by a slip of the hand. An interrupted creation leaves a
 * store's names only. */
static bool holds_other_things(const char *root, char name[256])
{
    DIR *folder = opendir(root);
    struct dirent *entry;
    bool found = false;
    if (!folder)
        return false; /* whoever creates the store says why */
    while (!found && (entry = readdir(folder)) != NULL) {
        found = !belongs_to_a_store(entry->d_name);
        snprintf(name, 256, "%s", entry->d_name);
    }
    closedir(folder);
    return found;
}

/* Refuses a root on which the command cannot work, before the store is asked. */
static int check_root(const struct weights_arguments *arguments, enum weights_access access, const char *root)
{
    char name[256];
    hl_weight_failure failure;
    const int absent = look_for_domain(root);
    if (absent != ENOENT && absent != ENOTDIR)
        return WEIGHTS_DONE;
    if (access != WEIGHTS_CREATES)
        (void)HL_WEIGHT_FAIL_ERRNO(&failure, DOMAIN, DOMAIN_UNAVAILABLE, false, absent,
                                   "there is no store at %.160s", root);
    else if (holds_other_things(root, name))
        (void)HL_WEIGHT_FAIL(&failure, CONFIGURATION, INVALID_CONFIG, false,
                             "--store %.120s is no store and not empty: it holds %.60s", root, name);
    else
        return WEIGHTS_DONE;
    return weights_fail(arguments->json, &failure);
}

static void fill_options(const struct weights_arguments *arguments, enum weights_access access,
                         const char *root, hl_weight_store_options *options)
{
    hl_weight_store_options_init(options);
    options->root = root;
    options->read_only = access == WEIGHTS_LOOKS;
    options->adopt = access != WEIGHTS_CREATES || (!arguments->settings_given && look_for_domain(root) == 0);
    options->hash_threads = (uint32_t)arguments->hash_threads;
    options->aligned_layout = arguments->aligned;
    if (arguments->wait_given)
        options->coordination_timeout_ns = (int64_t)arguments->wait_seconds * HL_NS_PER_S;
    else if (access != WEIGHTS_CREATES)
        options->coordination_timeout_ns = SECONDS_TO_LOOK * HL_NS_PER_S;
    if (!arguments->settings_given)
        return;
    options->scope = (hl_weight_scope)arguments->scope;
    options->storage_class = (hl_weight_storage_class)arguments->storage_class;
    options->admission = (hl_weight_admission)arguments->admission;
    options->max_artifact_bytes = arguments->max_artifact_bytes;
    options->max_store_bytes = arguments->max_store_bytes;
    options->min_free_bytes = arguments->min_free_bytes;
    if (arguments->domain_id)
        options->domain_id = arguments->domain_id;
}

int weights_open_store(const struct weights_arguments *arguments, enum weights_access access,
                       hl_weight_store **store)
{
    char root[PATH_MAX];
    hl_weight_store_options options;
    hl_weight_failure failure;
    if (arguments->wait_given && arguments->wait_seconds == 0)
        return weights_refuse("--wait takes at least 1", NULL);
    if (arguments->store) {
        if (snprintf(root, sizeof root, "%s", arguments->store) >= (int)sizeof root)
            return weights_refuse("the path is too long:", arguments->store);
    } else if (!default_root(root)) {
        return weights_refuse("there is no home folder to keep a store in: say --store ROOT", NULL);
    }
    if (!make_absolute(root))
        return weights_refuse("there is no absolute path for", root);
    if (access == WEIGHTS_CREATES && !arguments->store)
        make_parents(root);
    fill_options(arguments, access, root, &options);
    const int code = check_root(arguments, access, root);
    if (code != WEIGHTS_DONE)
        return code;
    return hl_weight_store_open(&options, store, &failure) == HL_OK ? WEIGHTS_DONE
                                                                    : weights_fail(arguments->json, &failure);
}
