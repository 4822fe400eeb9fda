// translate.cpp: translates a preprocessed CUDA source to C++ for any compiler. It rewrites four constructs, only in
// text from .cu and .cuh files:
//   asm("mnemonic operands;" : outputs : inputs)  a call of emu::mnemonic with the operands in the instruction's
//                                                 order, dots and colons as underscores (ptx.h). For an unsupported
//                                                 instruction the compiler's error names it.
//   kernel<<<grid, threads, ...>>>(arguments)     a call of emu::start
//   __shared__ declarations                       references into the CTA's memory
//   extern __shared__ arrays                      a pointer to the CTA's dynamic memory
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

static std::string in, out;
static size_t at;
static int declarations; // of shared memory, for names

static void fail(const std::string &what) {
    std::cerr << "translate: " << what << " near: " << in.substr(at, 120) << "\n";
    exit(1);
}

static bool is_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

static void skip_space() {
    while (at < in.size() && isspace((unsigned char)in[at])) at++;
}

static std::string word() {
    size_t from = at;
    while (at < in.size() && is_word(in[at])) at++;
    return in.substr(from, at - from);
}

static bool take(const std::string &text) {
    skip_space();
    if (in.compare(at, text.size(), text) != 0 || (is_word(text.back()) && is_word(in[at + text.size()]))) return false;
    at += text.size();
    return true;
}

static std::string literal() { // with its quotes
    char quote = in[at];
    size_t from = at++;
    while (in[at] != quote) at += in[at] == '\\' ? 2 : 1;
    return in.substr(from, ++at - from);
}

// From the opening parenthesis at `at` to the closing one; the text in between.
static std::string inside() {
    size_t from = at + 1;
    for (int depth = 0;;) {
        if (at >= in.size()) fail("no end of parentheses");
        if (in[at] == '"' || in[at] == '\'') {
            literal();
            continue;
        }
        depth += in[at] == '(' ? 1 : in[at] == ')' ? -1 : 0;
        at++;
        if (depth == 0) return in.substr(from, at - 1 - from);
    }
}

static std::string unescaped(const std::string &quoted) {
    std::string text;
    for (size_t i = 1; i + 1 < quoted.size(); i++) {
        if (quoted[i] != '\\')
            text += quoted[i];
        else
            text += quoted[++i] == 'n' ? '\n' : quoted[i];
    }
    return text;
}

// ---- instructions ----

struct instruction {
    std::string mnemonic;
    std::vector<std::string> operands; // "%3", "%%name", a number, or a predicate's name
};

static instruction parse(const std::string &text) {
    instruction i;
    size_t c = 0;
    while (c < text.size() && !isspace((unsigned char)text[c])) i.mnemonic += text[c++];
    while (c < text.size()) {
        size_t from = c;
        while (c < text.size() && (is_word(text[c]) || text[c] == '%')) c++;
        if (c == from) {
            c++;
            continue;
        }
        if (text.substr(from, c - from) != "_") i.operands.push_back(text.substr(from, c - from));
    }
    return i;
}

static std::string name_of(const std::string &mnemonic) {
    std::string name;
    for (size_t i = 0; i < mnemonic.size(); i++) {
        name += is_word(mnemonic[i]) ? mnemonic[i] : '_';
        if (name.size() >= 4 && name.compare(name.size() - 4, 4, "m64n") == 0) // one name for all sizes of wgmma
            while (isdigit((unsigned char)mnemonic[i + 1])) i++;
    }
    return name;
}

static std::string operand_of(std::string o, const std::string &predicate, const std::vector<std::string> &values) {
    if (o == "p") o = predicate;
    if (o.compare(0, 2, "%%") == 0) return "emu::special_" + o.substr(2) + "()";
    if (o.compare(0, 2, "0f") == 0) return "__uint_as_float(0x" + o.substr(2) + ")";
    if (o[0] == '%' && !isdigit((unsigned char)o[1])) fail("a register with one % where there are operands: " + o);
    return o[0] == '%' ? values.at((size_t)atoi(o.c_str() + 1)) : o;
}

// The instructions of one asm, as an expression: predicated ones execute if the predicate is true.
static std::string call_of(const std::string &text, const std::vector<std::string> &values) {
    std::string predicate, calls, comma;
    std::vector<std::pair<bool, instruction>> all;
    for (size_t from = 0, to; from < text.size(); from = to + 1) {
        to = text.find(';', from);
        if (to == std::string::npos) to = text.size();
        size_t c = from;
        while (c < to && (isspace((unsigned char)text[c]) || text[c] == '{' || text[c] == '}')) c++;
        if (c >= to || text.compare(c, 4, ".reg") == 0) continue;
        bool guarded = text.compare(c, 3, "@p ") == 0;
        instruction i = parse(text.substr(c + (guarded ? 3 : 0), to - c - (guarded ? 3 : 0)));
        if (i.mnemonic == "setp.ne.b32")
            predicate = i.operands[1];
        else if (i.mnemonic == "selp.b32")
            predicate = i.operands[0];
        else
            all.push_back({guarded, i});
    }
    if (all.empty()) return "(void)0";
    for (const auto &[guarded, i] : all) {
        std::string call = "emu::" + name_of(i.mnemonic) + "(", between;
        for (const std::string &o : i.operands) call += between + operand_of(o, predicate, values), between = ", ";
        call += ")";
        if (guarded) call = "((" + operand_of("p", predicate, values) + ") ? " + call + " : (void)0)";
        calls += comma + call, comma = ", ";
    }
    return calls;
}

// `at` is after the word asm.
static void translate_asm() {
    size_t begin = at;
    take("volatile");
    if (!take("(")) fail("asm without parentheses");
    std::string text;
    std::vector<std::string> values;
    for (skip_space(); in[at] == '"'; skip_space()) text += unescaped(literal());
    for (int section = 0; !take(")");) {
        if (take(":")) {
            section++;
        } else if (!take(",")) {
            skip_space();
            if (in[at] != '"') fail("asm operand");
            literal();
            skip_space();
            if (section < 3) values.push_back("(" + inside() + ")");
        }
    }
    out += call_of(text, values);
    for (size_t i = begin; i < at; i++)
        if (in[i] == '\n') out += '\n'; // line numbers are kept
}

// ---- shared memory and launches ----

static std::string alignment() {
    if (!take("__align__")) return "16";
    skip_space();
    return inside();
}

// `at` is after __shared__. The declared names are the last words before a bracket, a comma or the end.
static void translate_shared(bool dynamic) {
    std::string align = alignment(), text, last, number = std::to_string(declarations++);
    std::vector<std::string> names;
    skip_space();
    size_t from = at;
    int angles = 0;
    for (bool named = false;; at++) {
        char c = in[at];
        if (is_word(c)) {
            last = word();
            at--;
            continue;
        }
        angles += c == '<' ? 1 : c == '>' ? -1 : 0;
        if (c == '(' || c == '\0') fail("shared declaration");
        if (!named && !angles && (c == '[' || c == ',' || c == ';')) names.push_back(last), named = true;
        if (c == ',' && !angles) named = false;
        if (c == ';') break;
    }
    text = in.substr(from, at - from);
    if (dynamic) {
        std::string type = text.substr(0, text.rfind(names[0]));
        out += type + "*" + names[0] + " = (" + type + "*)emu::shared_dynamic(" + align + ")";
        return;
    }
    std::string type = "emu_shared_" + number;
    out += "struct " + type + " { " + text + "; }; static char " + type + "_key; " + type + " &" + type + "_here = *(" +
           type + " *)emu::shared_static(&" + type + "_key, sizeof(" + type + "), " + align + ")";
    for (const std::string &n : names) out += "; auto &" + n + " = " + type + "_here." + n;
}

// `at` is at <<<; the kernel's name and template arguments are the end of `out`.
static void translate_launch() {
    size_t from = out.size();
    if (out[from - 1] == '>')
        for (int depth = 0; depth || out[from - 1] == '>'; from--)
            depth += out[from - 1] == '>' ? 1 : out[from - 1] == '<' ? -1 : 0;
    while (is_word(out[from - 1])) from--;
    std::string kernel = out.substr(from);
    out.resize(from);
    size_t end = in.find(">>>", at);
    if (end == std::string::npos) fail("<<< without >>>");
    std::string shape = in.substr(at + 3, end - at - 3);
    at = end + 3;
    skip_space();
    out += "emu::start(emu::shape(" + shape + "), [&](auto... emu_p) { " + kernel + "(emu_p...); }, " + inside() + ")";
}

int main(int count, char **argument) {
    if (count != 3) return fprintf(stderr, "usage: translate IN OUT\n"), 1;
    std::ifstream file(argument[1]);
    in.assign(std::istreambuf_iterator<char>(file), {});
    in += '\0';
    bool ours = false;
    while (at + 1 < in.size()) {
        char c = in[at];
        if (c == '#' && (at == 0 || in[at - 1] == '\n')) { // # line "file" flags
            size_t end = in.find('\n', at);
            std::string line = in.substr(at, end - at);
            if (line.compare(0, 2, "# ") == 0)
                ours = line.find(".cu\"") != std::string::npos || line.find(".cuh\"") != std::string::npos;
            out += line, at = end;
        } else if (c == '"' || c == '\'') {
            out += literal();
        } else if (isalpha((unsigned char)c) || c == '_') {
            size_t from = at;
            std::string w = word();
            if (ours && w == "asm")
                translate_asm();
            else if (ours && w == "__shared__")
                translate_shared(false);
            else if (ours && w == "extern" && take("__shared__"))
                translate_shared(true);
            else
                out += w, at = from + w.size();
        } else if (isdigit((unsigned char)c)) { // digit separators are not quotes
            while (is_word(in[at]) || in[at] == '.' || (in[at] == '\'' && is_word(in[at + 1]))) out += in[at++];
        } else if (ours && in.compare(at, 3, "<<<") == 0) {
            translate_launch();
        } else {
            out += c, at++;
        }
    }
    std::ofstream to(argument[2]);
    to << out;
    return to.good() ? 0 : 1;
}
