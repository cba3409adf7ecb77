//! Templates in the styles of model families, in words of our own.

use serde_json::json;
use specdec_text::{ChatOptions, ChatTemplate, Message, TextError};

pub(crate) const CHATML: &str = "\
{% for message in messages %}
{% if loop.first and message.role != 'system' %}
<|im_start|>system
You are helpful.<|im_end|>
{% endif %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
";

pub(crate) const HEADERS: &str = "\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set rules = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set rules = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday: ' + strftime_now('%d %b %Y') + '\\n\\n' + rules + '<|eot_id|>' }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}";

pub(crate) const THINKING: &str = "\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}{{- tool | tojson }}{{ '\\n' }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' and not message.content.startswith('<tool_response>') %}
        {%- set ns.last = messages|length - 1 - loop.index0 %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'assistant' %}
        {%- set thought = '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if thought and loop.index0 > ns.last %}{{- '<think>\\n' + thought.strip() + '\\n</think>\\n\\n' }}{%- endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function if call.function else call %}
            {{- '\\n<tool_call>\\n{\"name\": \"' + call.name + '\", \"arguments\": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}";

pub(crate) const TURNS: &str = "\
{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate, not ' ~ message.role) }}
{% endif %}
{% if message.role == 'user' %}{{ '[INST] ' + message.content.strip() + ' [/INST]' }}{% else %}{% generation %}{{ ' ' ~ message.content ~ eos_token }}{% endgeneration %}{% endif %}
{% endfor %}";

fn parse(source: &str) -> ChatTemplate {
    ChatTemplate::parse(source, "tested").unwrap()
}

fn conversation() -> Vec<Message> {
    vec![
        Message::system(" Be brief. "),
        Message::user(" Hi\n"),
        Message::assistant("Hello."),
        Message::user("Bye"),
    ]
}

#[test]
fn g7_chatml() {
    let template = parse(CHATML);
    let expected = "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(
        template
            .render(&[Message::user("Hi")], &ChatOptions::default())
            .unwrap(),
        expected
    );
    let mut options = ChatOptions::default();
    options.add_generation_prompt = false;
    let expected = "<|im_start|>system\n Be brief. <|im_end|>\n<|im_start|>user\n Hi\n<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n";
    assert_eq!(
        template.render(&conversation(), &options).unwrap(),
        expected
    );
}

#[test]
fn g7_headers_with_a_begin_token_and_a_date() {
    let template = parse(HEADERS).with_token("bos_token", "<|begin|>");
    let mut options = ChatOptions::default();
    options.now = Some(1_721_952_000);
    let expected = "<|begin|><|start_header_id|>system<|end_header_id|>\n\nToday: 26 Jul 2024\n\nBe brief.<|eot_id|>\
        <|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>\
        <|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n";
    assert_eq!(
        template.render(&conversation(), &options).unwrap(),
        expected
    );
}

#[test]
fn g7_thinking_switch_and_string_methods() {
    let template = parse(THINKING);
    let messages = [
        Message::user("1+1?"),
        Message::assistant("<think>\nold\n</think>\n\n2"),
        Message::user("And <b>?"),
        Message::assistant("<think>\nnew\n</think>\n\n3"),
    ];
    let body = "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n<|im_start|>user\nAnd <b>?<|im_end|>\n\
        <|im_start|>assistant\n<think>\nnew\n</think>\n\n3<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(
        template.render(&messages, &ChatOptions::default()).unwrap(),
        body
    );
    let off = ChatOptions::default().with("enable_thinking", false);
    assert_eq!(
        template.render(&messages, &off).unwrap(),
        format!("{body}<think>\n\n</think>\n\n")
    );
}

#[test]
fn g7_tools_are_json_as_python_writes_it() {
    let template = parse(THINKING);
    let tools = json!([{"type": "function", "function": {"name": "größe", "parameters": {"a<b": [1, 2.5, true, null], "empty": {}}}}]);
    let calls = json!([{"type": "function", "function": {"name": "größe", "arguments": {"q": "it's \"<&>\" \\ \n"}}}]);
    let mut call = Message::assistant("").with("tool_calls", calls);
    call.content = None;
    let messages = [
        Message::user("go"),
        call,
        Message::new("tool", "<tool_response>5</tool_response>"),
    ];
    let mut options = ChatOptions::default().with_tools(tools);
    options.add_generation_prompt = false;
    let expected = "<|im_start|>system\n# Tools\n\
        {\"type\": \"function\", \"function\": {\"name\": \"größe\", \"parameters\": {\"a<b\": [1, 2.5, true, null], \"empty\": {}}}}\n<|im_end|>\n\
        <|im_start|>user\ngo<|im_end|>\n\
        <|im_start|>assistant\n\n<tool_call>\n{\"name\": \"größe\", \"arguments\": {\"q\": \"it's \\\"<&>\\\" \\\\ \\n\"}}\n</tool_call><|im_end|>\n\
        <|im_start|>tool\n<tool_response>5</tool_response><|im_end|>\n";
    assert_eq!(template.render(&messages, &options).unwrap(), expected);

    let template = parse(
        "{{ tools | tojson(indent=2) }}\n{{ tools | tojson(separators=(',', ':'), ensure_ascii=True, sort_keys=true) }}",
    );
    let options = ChatOptions::default().with_tools(json!([{"b": [], "a": ["é😀"]}]));
    let expected = "[\n  {\n    \"b\": [],\n    \"a\": [\n      \"é😀\"\n    ]\n  }\n]\n[{\"a\":[\"\\u00e9\\ud83d\\ude00\"],\"b\":[]}]";
    assert_eq!(template.render(&[], &options).unwrap(), expected);
}

#[test]
fn g7_a_template_that_raises_says_why() {
    let template = parse(TURNS)
        .with_token("bos_token", "<s>")
        .with_token("eos_token", "</s>");
    let good = [
        Message::user(" a "),
        Message::assistant("b"),
        Message::user("c"),
    ];
    assert_eq!(
        template.render(&good, &ChatOptions::default()).unwrap(),
        "<s>[INST] a [/INST] b</s>[INST] c [/INST]"
    );
    let error = template
        .render(&good[1..], &ChatOptions::default())
        .unwrap_err();
    assert!(
        matches!(&error, TextError::TemplateRaised { template, message } if template == "tested" && message == "Roles must alternate, not assistant"),
        "{error}"
    );
}

#[test]
fn g7_all_special_token_variables() {
    let names = [
        "bos_token",
        "eos_token",
        "unk_token",
        "sep_token",
        "pad_token",
        "cls_token",
        "mask_token",
    ];
    let source: String = names
        .iter()
        .map(|name| format!("{{{{ {name} }}}}|"))
        .collect();
    let template = names.iter().fold(parse(&source), |template, name| {
        template.with_token(*name, format!("[{name}]"))
    });
    let expected: String = names.iter().map(|name| format!("[{name}]|")).collect();
    assert_eq!(
        template.render(&[], &ChatOptions::default()).unwrap(),
        expected
    );
    assert_eq!(
        parse(&source).render(&[], &ChatOptions::default()).unwrap(),
        "|||||||",
        "undefined prints nothing"
    );
}

#[test]
fn g7_values_print_as_in_python() {
    let template = parse(
        "{{ none }} {{ true }} {{ false }} {{ [1, 'a', none, 1.5] }} {{ {'k': \"it's\"} }} {{ 1.0 }} {{ 10 // 3 }} {{ (true)|string }}",
    );
    assert_eq!(
        template.render(&[], &ChatOptions::default()).unwrap(),
        "None True False [1, 'a', None, 1.5] {'k': \"it's\"} 1.0 3 True"
    );
}

#[test]
fn g7_unsupported_constructs_are_errors_that_name_the_template() {
    for source in [
        "a\n{% trans %}x{% endtrans %}",
        "a\n{{ messages | no_such_filter }}",
        "a\n{{ 'x'.no_such_method() }}",
        "a\n{{ no_such() }}",
        "a\n{% for %}",
    ] {
        let result = ChatTemplate::parse(source, "the one")
            .and_then(|template| template.render(&[], &ChatOptions::default()));
        let error = result.unwrap_err();
        assert!(
            matches!(&error, TextError::Template { template, line: 2, .. } if template == "the one"),
            "{source:?}: {error:?}"
        );
        assert!(error.to_string().contains("the one"));
    }
}
