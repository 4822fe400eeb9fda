/* http_clients.c: how many connections each client address has: a hash table of those that have one. An IPv6 client
 * owns a network of 2^64 addresses as a rule, so these count as one. */
#include "serve/http_internal.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

struct iv_http_client {
    iv_http_client *next;
    size_t connections;
    uint8_t address[16];
};

static bool take_address(const struct sockaddr *from, uint8_t out[16]) {
    static const uint8_t mapped[12] = {[10] = 0xff, 0xff};
    memset(out, 0, 16);
    if (from->sa_family == AF_INET) {
        memcpy(out, mapped, sizeof mapped);
        memcpy(out + 12, &((const struct sockaddr_in *)(const void *)from)->sin_addr, 4);
        return true;
    }
    if (from->sa_family != AF_INET6) return false;
    const uint8_t *a = ((const struct sockaddr_in6 *)(const void *)from)->sin6_addr.s6_addr;
    memcpy(out, a, memcmp(a, mapped, sizeof mapped) == 0 ? 16 : 8);
    return true;
}

/* The seed is secret, so that clients cannot choose addresses that meet in one bucket. */
static iv_http_client **bucket_of(iv_http *h, const uint8_t address[16]) {
    uint64_t z[2];
    memcpy(z, address, sizeof z);
    uint64_t mixed = (z[0] ^ h->client_seed) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 29) ^ z[1]) * 0x94d049bb133111ebu;
    return &h->clients[(mixed >> 32) % IV_HTTP_CLIENT_BUCKETS];
}

bool iv_http_client_enter(iv_http *h, const struct sockaddr *from, iv_http_client **out) {
    uint8_t address[16];
    *out = NULL;
    if (h->o.client_connections_max == 0 || !from || !take_address(from, address)) return true;
    iv_http_client **bucket = bucket_of(h, address), *client = *bucket;
    while (client && memcmp(client->address, address, sizeof address) != 0) client = client->next;
    if (client && client->connections >= h->o.client_connections_max) return false;
    if (!client) {
        if (!(client = calloc(1, sizeof *client))) return true; /* uncounted: memory is short for other reasons */
        memcpy(client->address, address, sizeof address);
        client->next = *bucket;
        *bucket = client;
    }
    client->connections++;
    *out = client;
    return true;
}

void iv_http_client_leave(iv_http *h, iv_http_client *client) {
    if (!client || --client->connections > 0) return;
    iv_http_client **at = bucket_of(h, client->address);
    while (*at != client) at = &(*at)->next;
    *at = client->next;
    free(client);
}
