# bash completion for invar; made by: invar completion bash
_invar_words() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$word"); }
_invar_files() { compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$word"); }
_invar_folders() { compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$word"); }
_invar() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]}
    COMPREPLY=()
    # Readline takes --flag=value as three words.
    if [ "$word" = = ]; then word=; fi
    if [ "$before" = = ]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi
    if [ "$COMP_CWORD" -eq 1 ]; then
        _invar_words 'generate chat bench inspect tokenize render logits verify eval replay completion help --help --version'
        return
    fi
    case $command:$before in
        generate:--prompt | generate:-p) _invar_words ''; return ;;
        generate:--prompt-file) _invar_files; return ;;
        generate:--ids) _invar_words ''; return ;;
        generate:--system) _invar_words ''; return ;;
        generate:--chat-template-kwargs) _invar_words ''; return ;;
        generate:--temperature) _invar_words ''; return ;;
        generate:--top-p) _invar_words ''; return ;;
        generate:--top-k) _invar_words ''; return ;;
        generate:--min-p) _invar_words ''; return ;;
        generate:--repetition-penalty) _invar_words ''; return ;;
        generate:--presence-penalty) _invar_words ''; return ;;
        generate:--frequency-penalty) _invar_words ''; return ;;
        generate:--logit-bias) _invar_words ''; return ;;
        generate:--seed) _invar_words ''; return ;;
        generate:--max-tokens) _invar_words ''; return ;;
        generate:--stop) _invar_words ''; return ;;
        generate:--stop-id) _invar_words ''; return ;;
        generate:--logprobs) _invar_words ''; return ;;
        generate:--receipt) _invar_files; return ;;
        generate:--load-format) _invar_words 'auto dummy'; return ;;
        generate:--dummy-seed) _invar_words ''; return ;;
        generate:--arithmetic) _invar_words 'fma32 tc16'; return ;;
        generate:--dtype) _invar_words 'auto bfloat16 float16 float32'; return ;;
        generate:--numerics) _invar_words 'invar bio vanilla vanilla-blas'; return ;;
        generate:--isa) _invar_words 'auto scalar avx2 avx512'; return ;;
        generate:--threads) _invar_words ''; return ;;
        generate:--tensor-parallel-size) _invar_words ''; return ;;
        generate:--rank-timeout) _invar_words ''; return ;;
        generate:--max-model-len) _invar_words ''; return ;;
        generate:--max-num-seqs) _invar_words ''; return ;;
        generate:--max-num-batched-tokens) _invar_words ''; return ;;
        generate:--kv-cache-memory) _invar_words ''; return ;;
        generate:--speculative) _invar_words 'off ngram'; return ;;
        generate:--num-speculative-tokens) _invar_words ''; return ;;
        chat:--system) _invar_words ''; return ;;
        chat:--chat-template-kwargs) _invar_words ''; return ;;
        chat:--temperature) _invar_words ''; return ;;
        chat:--top-p) _invar_words ''; return ;;
        chat:--top-k) _invar_words ''; return ;;
        chat:--min-p) _invar_words ''; return ;;
        chat:--repetition-penalty) _invar_words ''; return ;;
        chat:--presence-penalty) _invar_words ''; return ;;
        chat:--frequency-penalty) _invar_words ''; return ;;
        chat:--logit-bias) _invar_words ''; return ;;
        chat:--seed) _invar_words ''; return ;;
        chat:--max-tokens) _invar_words ''; return ;;
        chat:--stop) _invar_words ''; return ;;
        chat:--stop-id) _invar_words ''; return ;;
        chat:--load-format) _invar_words 'auto dummy'; return ;;
        chat:--dummy-seed) _invar_words ''; return ;;
        chat:--arithmetic) _invar_words 'fma32 tc16'; return ;;
        chat:--dtype) _invar_words 'auto bfloat16 float16 float32'; return ;;
        chat:--numerics) _invar_words 'invar bio vanilla vanilla-blas'; return ;;
        chat:--isa) _invar_words 'auto scalar avx2 avx512'; return ;;
        chat:--threads) _invar_words ''; return ;;
        chat:--tensor-parallel-size) _invar_words ''; return ;;
        chat:--rank-timeout) _invar_words ''; return ;;
        chat:--max-model-len) _invar_words ''; return ;;
        chat:--max-num-seqs) _invar_words ''; return ;;
        chat:--max-num-batched-tokens) _invar_words ''; return ;;
        chat:--kv-cache-memory) _invar_words ''; return ;;
        chat:--speculative) _invar_words 'off ngram'; return ;;
        chat:--num-speculative-tokens) _invar_words ''; return ;;
        bench:--concurrency) _invar_words ''; return ;;
        bench:--prompt-tokens) _invar_words ''; return ;;
        bench:--decode-tokens) _invar_words ''; return ;;
        bench:--repeat) _invar_words ''; return ;;
        bench:--load-format) _invar_words 'auto dummy'; return ;;
        bench:--dummy-seed) _invar_words ''; return ;;
        bench:--arithmetic) _invar_words 'fma32 tc16'; return ;;
        bench:--dtype) _invar_words 'auto bfloat16 float16 float32'; return ;;
        bench:--numerics) _invar_words 'invar bio vanilla vanilla-blas'; return ;;
        bench:--isa) _invar_words 'auto scalar avx2 avx512'; return ;;
        bench:--threads) _invar_words ''; return ;;
        bench:--tensor-parallel-size) _invar_words ''; return ;;
        bench:--rank-timeout) _invar_words ''; return ;;
        bench:--max-model-len) _invar_words ''; return ;;
        bench:--max-num-seqs) _invar_words ''; return ;;
        bench:--max-num-batched-tokens) _invar_words ''; return ;;
        bench:--kv-cache-memory) _invar_words ''; return ;;
        bench:--speculative) _invar_words 'off ngram'; return ;;
        bench:--num-speculative-tokens) _invar_words ''; return ;;
        inspect:--dtype) _invar_words 'auto bfloat16 float16 float32'; return ;;
        tokenize:--text) _invar_words ''; return ;;
        tokenize:--text-file) _invar_files; return ;;
        tokenize:--ids) _invar_words ''; return ;;
        render:--template) _invar_files; return ;;
        render:--input) _invar_files; return ;;
        render:--strftime-now) _invar_words ''; return ;;
        logits:--ids) _invar_words ''; return ;;
        logits:--text) _invar_words ''; return ;;
        logits:--out) _invar_files; return ;;
        logits:--load-format) _invar_words 'auto dummy'; return ;;
        logits:--dummy-seed) _invar_words ''; return ;;
        logits:--arithmetic) _invar_words 'fma32 tc16'; return ;;
        logits:--dtype) _invar_words 'auto bfloat16 float16 float32'; return ;;
        logits:--numerics) _invar_words 'invar bio vanilla vanilla-blas'; return ;;
        logits:--isa) _invar_words 'auto scalar avx2 avx512'; return ;;
        logits:--threads) _invar_words ''; return ;;
        logits:--tensor-parallel-size) _invar_words ''; return ;;
        logits:--rank-timeout) _invar_words ''; return ;;
        logits:--max-model-len) _invar_words ''; return ;;
        logits:--max-num-seqs) _invar_words ''; return ;;
        logits:--max-num-batched-tokens) _invar_words ''; return ;;
        logits:--kv-cache-memory) _invar_words ''; return ;;
        logits:--speculative) _invar_words 'off ngram'; return ;;
        logits:--num-speculative-tokens) _invar_words ''; return ;;
        verify:--prompts) _invar_files; return ;;
        verify:--max-tokens) _invar_words ''; return ;;
        verify:--axes) _invar_words ''; return ;;
        verify:--batch-sizes) _invar_words ''; return ;;
        verify:--chunk-sizes) _invar_words ''; return ;;
        verify:--thread-counts) _invar_words ''; return ;;
        verify:--tp-sizes) _invar_words ''; return ;;
        verify:--combinations) _invar_words ''; return ;;
        verify:--seed) _invar_words ''; return ;;
        verify:--scalar-tokens) _invar_words ''; return ;;
        verify:--json) _invar_files; return ;;
        verify:--plot) _invar_files; return ;;
        verify:--arithmetic) _invar_words 'fma32 tc16'; return ;;
        verify:--dtype) _invar_words 'auto bfloat16 float16 float32'; return ;;
        verify:--numerics) _invar_words 'invar bio vanilla vanilla-blas'; return ;;
        eval:--dataset) _invar_files; return ;;
        eval:--configs) _invar_words ''; return ;;
        eval:--out) _invar_files; return ;;
        eval:--limit) _invar_words ''; return ;;
        eval:--system) _invar_words ''; return ;;
        eval:--chat-template-kwargs) _invar_words ''; return ;;
        eval:--title) _invar_words ''; return ;;
        eval:--temperature) _invar_words ''; return ;;
        eval:--top-p) _invar_words ''; return ;;
        eval:--top-k) _invar_words ''; return ;;
        eval:--min-p) _invar_words ''; return ;;
        eval:--repetition-penalty) _invar_words ''; return ;;
        eval:--presence-penalty) _invar_words ''; return ;;
        eval:--frequency-penalty) _invar_words ''; return ;;
        eval:--logit-bias) _invar_words ''; return ;;
        eval:--seed) _invar_words ''; return ;;
        eval:--max-tokens) _invar_words ''; return ;;
        eval:--stop) _invar_words ''; return ;;
        eval:--stop-id) _invar_words ''; return ;;
        eval:--load-format) _invar_words 'auto dummy'; return ;;
        eval:--dummy-seed) _invar_words ''; return ;;
        eval:--arithmetic) _invar_words 'fma32 tc16'; return ;;
        eval:--dtype) _invar_words 'auto bfloat16 float16 float32'; return ;;
        eval:--numerics) _invar_words 'invar bio vanilla vanilla-blas'; return ;;
        eval:--isa) _invar_words 'auto scalar avx2 avx512'; return ;;
        eval:--threads) _invar_words ''; return ;;
        eval:--tensor-parallel-size) _invar_words ''; return ;;
        eval:--rank-timeout) _invar_words ''; return ;;
        eval:--max-model-len) _invar_words ''; return ;;
        eval:--max-num-seqs) _invar_words ''; return ;;
        eval:--max-num-batched-tokens) _invar_words ''; return ;;
        eval:--kv-cache-memory) _invar_words ''; return ;;
        eval:--speculative) _invar_words 'off ngram'; return ;;
        eval:--num-speculative-tokens) _invar_words ''; return ;;
        replay:--load-format) _invar_words 'auto dummy'; return ;;
        replay:--dummy-seed) _invar_words ''; return ;;
        replay:--arithmetic) _invar_words 'fma32 tc16'; return ;;
        replay:--dtype) _invar_words 'auto bfloat16 float16 float32'; return ;;
        replay:--numerics) _invar_words 'invar bio vanilla vanilla-blas'; return ;;
        replay:--isa) _invar_words 'auto scalar avx2 avx512'; return ;;
        replay:--threads) _invar_words ''; return ;;
        replay:--tensor-parallel-size) _invar_words ''; return ;;
        replay:--rank-timeout) _invar_words ''; return ;;
        replay:--max-model-len) _invar_words ''; return ;;
        replay:--max-num-seqs) _invar_words ''; return ;;
        replay:--max-num-batched-tokens) _invar_words ''; return ;;
        replay:--kv-cache-memory) _invar_words ''; return ;;
        replay:--speculative) _invar_words 'off ngram'; return ;;
        replay:--num-speculative-tokens) _invar_words ''; return ;;
    esac
    case $command:$word in
        generate:-*) _invar_words '--help -p --prompt --prompt-file --ids --chat --system --chat-template-kwargs --temperature --top-p --top-k --min-p --repetition-penalty --presence-penalty --frequency-penalty --logit-bias --seed --no-generation-config --max-tokens --stop --stop-id --ignore-eos --logprobs --json --receipt --quiet --load-format --dummy-seed --arithmetic --dtype --numerics --isa --threads --tensor-parallel-size --rank-timeout --max-model-len --max-num-seqs --max-num-batched-tokens --kv-cache-memory --no-enable-prefix-caching --speculative --num-speculative-tokens' ;;
        chat:-*) _invar_words '--help --system --chat-template-kwargs --quiet --temperature --top-p --top-k --min-p --repetition-penalty --presence-penalty --frequency-penalty --logit-bias --seed --no-generation-config --max-tokens --stop --stop-id --ignore-eos --load-format --dummy-seed --arithmetic --dtype --numerics --isa --threads --tensor-parallel-size --rank-timeout --max-model-len --max-num-seqs --max-num-batched-tokens --kv-cache-memory --no-enable-prefix-caching --speculative --num-speculative-tokens' ;;
        bench:-*) _invar_words '--help --concurrency --prompt-tokens --decode-tokens --repeat --json --load-format --dummy-seed --arithmetic --dtype --numerics --isa --threads --tensor-parallel-size --rank-timeout --max-model-len --max-num-seqs --max-num-batched-tokens --kv-cache-memory --no-enable-prefix-caching --speculative --num-speculative-tokens' ;;
        inspect:-*) _invar_words '--help --dtype --json' ;;
        tokenize:-*) _invar_words '--help --text --text-file --ids --no-special --json' ;;
        render:-*) _invar_words '--help --template --input --strftime-now' ;;
        logits:-*) _invar_words '--help --ids --text --out --load-format --dummy-seed --arithmetic --dtype --numerics --isa --threads --tensor-parallel-size --rank-timeout --max-model-len --max-num-seqs --max-num-batched-tokens --kv-cache-memory --no-enable-prefix-caching --speculative --num-speculative-tokens' ;;
        verify:-*) _invar_words '--help --prompts --max-tokens --axes --batch-sizes --chunk-sizes --thread-counts --tp-sizes --combinations --product --seed --scalar-tokens --json --plot --arithmetic --dtype --numerics' ;;
        eval:-*) _invar_words '--help --dataset --configs --out --limit --no-chat --system --chat-template-kwargs --title --json --temperature --top-p --top-k --min-p --repetition-penalty --presence-penalty --frequency-penalty --logit-bias --seed --no-generation-config --max-tokens --stop --stop-id --ignore-eos --load-format --dummy-seed --arithmetic --dtype --numerics --isa --threads --tensor-parallel-size --rank-timeout --max-model-len --max-num-seqs --max-num-batched-tokens --kv-cache-memory --no-enable-prefix-caching --speculative --num-speculative-tokens' ;;
        replay:-*) _invar_words '--help --force --json --load-format --dummy-seed --arithmetic --dtype --numerics --isa --threads --tensor-parallel-size --rank-timeout --max-model-len --max-num-seqs --max-num-batched-tokens --kv-cache-memory --no-enable-prefix-caching --speculative --num-speculative-tokens' ;;
        completion:-*) _invar_words '--help' ;;
        completion:*) _invar_words 'bash zsh fish' ;;
        help:-*) _invar_words '--help' ;;
        help:*) _invar_words 'generate chat bench inspect tokenize render logits verify eval replay completion help' ;;
        *) _invar_folders ;;
    esac
}
complete -F _invar invar
