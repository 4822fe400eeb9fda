/* page_route.c: the page over HTTP. Apart from page.c, so that the page can be had without a server. */
#include "serve/page/page.h"
#include "serve/server.h"

#include <string.h>

void iv_page_handle(void *user, iv_http_request *x) {
    char policy[IV_PAGE_POLICY_MAX];
    iv_error err;
    const iv_server *s = user;
    if (iv_page_policy(s->o->proof_urls, policy, &err) != IV_OK) {
        iv_http_request_reply(x, 500, "text/plain", err.message, strlen(err.message));
        return;
    }
    iv_http_request_add_header(x, "Content-Security-Policy", policy);
    iv_http_request_add_header(x, "X-Content-Type-Options", "nosniff");
    iv_http_request_add_header(x, "Referrer-Policy", "no-referrer");
    iv_http_request_add_header(x, "Cache-Control", "no-cache"); /* another version of the program has another page */
    iv_http_request_reply(x, 200, "text/html; charset=utf-8", iv_page, iv_page_bytes);
}
