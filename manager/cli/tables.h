/* Answers for people. */
#ifndef MANAGER_CLI_TABLES_H
#define MANAGER_CLI_TABLES_H

#include <jansson.h>
#include <stdio.h>

void cli_print_status(const json_t *answer, FILE *to);
void cli_print_sessions(const json_t *answer, FILE *to);
void cli_print_arenas(const json_t *answer, FILE *to);
void cli_print_quarantine(const json_t *answer, FILE *to);
void cli_print_release(const json_t *answer, FILE *to);
void cli_print_check(const json_t *answer, FILE *to);

#endif
