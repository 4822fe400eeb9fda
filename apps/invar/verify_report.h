/* verify_report.h: what invar verify found: a table, JSON, a picture. */
#ifndef INVAR_CLI_VERIFY_REPORT_H
#define INVAR_CLI_VERIFY_REPORT_H

#include "verify_run.h"

typedef struct verify_report {
    const char *model; /* as the user named it */
    const verify_job *job;
    const verify_config *configs;
    const verify_result *results; /* [count]; configuration 0 is the quiet run */
    size_t count;
    size_t *unique;                                /* different outputs of each prompt over all configurations */
    size_t unique_most, compared, differing, rows; /* compared: configurations beside the quiet run; rows: of those */
    size_t worst;                                  /* first configuration that differs; SIZE_MAX: none */
    double most, top;                              /* over all configurations */
} verify_report;

/* Fills what follows from results. The caller frees with verify_report_close. */
int verify_report_open(verify_report *report, iv_error *err);
void verify_report_close(verify_report *report);

/* One line of the table, as soon as its configuration is through; head and foot around them. prompts: how many a
 * configuration runs, unless it is a slow one. */
void verify_table_head(FILE *out, const verify_job *job, const char *model, const cli_style *style);
void verify_table_row(FILE *out, const verify_config *config, const verify_result *result, size_t prompts,
                      const cli_style *style);
void verify_table_foot(FILE *out, const verify_report *report, const cli_style *style);

void verify_report_json(FILE *out, const verify_report *report);

/* One row a configuration, one column a request. */
void verify_report_plot(FILE *out, const verify_report *report);

/* What the engine did to the requests: "12 at once, 340 tokens cached". Returns out. */
const char *verify_deeds(const verify_result *result, char out[128]);

#endif
