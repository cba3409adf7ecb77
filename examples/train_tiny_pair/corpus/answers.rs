use super::stories;
use super::teller::{Teller, a, capital, listed};
use super::words::*;

type Pairs = Vec<(String, String)>;

/// A question with its answer, sometimes with a second question that needs the first.
pub fn exchange(t: &mut Teller) -> Pairs {
    match t.below(19) {
        0 | 1 => vec![about_animal(t)],
        2 => vec![about_person(t)],
        3..6 => where_is(t),
        6 | 7 => vec![count(t)],
        8 | 9 => vec![name_some(t)],
        10 => vec![short_fact(t)],
        11 => vec![sum(t)],
        12..15 => vec![copy(t)],
        15 => vec![past(t)],
        16 => vec![stories::recipe(t)],
        17 => {
            let ask = t.pick(&["Sing a song.", "Please sing a song for me."]);
            vec![(ask.to_owned(), stories::song(t))]
        }
        _ => vec![told_story(t)],
    }
}

fn about_animal(t: &mut Teller) -> (String, String) {
    let Animal {
        kind,
        color,
        food,
        home,
        sound,
    } = t.pick(&ANIMALS);
    let eats = format!("The {kind} eats {food}.");
    let lives = format!("The {kind} lives {home}.");
    let says = format!("The {kind} says {sound}, {sound}, {sound}.");
    let looks = format!("The {kind} is {color}.");
    match t.below(6) {
        0 => (
            format!("What does the {kind} eat?"),
            format!("{eats} It likes {food} very much."),
        ),
        1 => (
            format!("Where does the {kind} live?"),
            format!("{lives} Its home is {home}."),
        ),
        2 => (format!("What does the {kind} say?"), says),
        3 => (format!("What color is the {kind}?"), looks),
        4 => (
            format!("Who eats {food}?"),
            format!("{eats} Every day the {kind} looks for {food}."),
        ),
        _ => (
            format!("Tell me about the {kind}."),
            format!("{looks} {lives} {eats} {says}"),
        ),
    }
}

fn about_person(t: &mut Teller) -> (String, String) {
    let (name, they, work, place, makes, evening) = t.pick(&PEOPLE);
    let it = capital(they);
    match t.below(4) {
        0 => (
            format!("Who is the {work}?"),
            format!("The {work} is {name}. {it} {makes} {place}."),
        ),
        1 => (
            format!("What does {name} do in the evening?"),
            format!("In the evening {name} {evening}."),
        ),
        2 => (
            format!("Where does {name} work?"),
            format!("{name} is the {work}. {it} works {place}."),
        ),
        _ => (
            format!("Who is {name}?"),
            format!(
                "{name} is the {work}. Every day {they} {makes} {place}. In the evening {they} {evening}."
            ),
        ),
    }
}

fn where_is(t: &mut Teller) -> Pairs {
    let n = 2 + t.below(3);
    let places = t.several(&PLACES, n);
    let things = t.several(&THINGS, n);
    let things: Vec<String> = things
        .into_iter()
        .map(|thing| format!("The {} {thing}", t.pick(&COLORS)))
        .collect();
    let told: Vec<String> = things
        .iter()
        .zip(&places)
        .map(|(thing, place)| format!("{thing} is {place}."))
        .collect();
    let asked = 1 + t.below(2);
    let order = t.several(&(0..n).collect::<Vec<_>>(), asked);
    let ask = |i: usize| format!("here is {}?", things[i].replacen("The", "the", 1));
    let mut pairs = vec![(
        format!("{} W{}", told.join(" "), ask(order[0])),
        told[order[0]].clone(),
    )];
    for &i in &order[1..] {
        pairs.push((format!("And w{}", ask(i)), told[i].clone()));
    }
    pairs
}

fn count(t: &mut Teller) -> (String, String) {
    let from = t.below(12);
    let to = (from + 3 + t.below(8)).min(20);
    let (low, high) = (NUMBERS[from], NUMBERS[to]);
    let mut row = NUMBERS[from..=to].to_vec();
    if t.below(3) == 0 {
        row.reverse();
        return (
            format!("Count down from {high} to {low}."),
            capital(&(row.join(", ") + ".")),
        );
    }
    (
        format!("Count from {low} to {high}."),
        capital(&(row.join(", ") + ".")),
    )
}

fn name_some(t: &mut Teller) -> (String, String) {
    let (kind, all) = t.pick(&KINDS);
    let n = 3 + t.below(4);
    let number = NUMBERS[n];
    if t.below(2) == 0 {
        let row = capital(&listed(&all[..n]));
        return (format!("Name {number} {kind}."), format!("{row}."));
    }
    let mut list = format!("Here are {number} {kind}:\n");
    for (i, one) in all[..n].iter().enumerate() {
        list += &format!("{}. {one}\n", i + 1);
    }
    (
        format!("Make a list of {number} {kind}."),
        list.trim_end().to_owned(),
    )
}

fn short_fact(t: &mut Teller) -> (String, String) {
    let after = |t: &mut Teller, what: &str, all: &[&str]| {
        let i = t.below(all.len());
        let (one, next) = (all[i], all[(i + 1) % all.len()]);
        (
            format!("What {what} comes after {one}?"),
            format!("After {one} comes {next}."),
        )
    };
    match t.below(5) {
        0 => after(t, "day", &DAYS),
        1 => after(t, "month", &MONTHS),
        2 => (
            "Name the days of the week.".into(),
            format!("The days of the week are {}.", listed(&DAYS)),
        ),
        _ => {
            let (x, y) = t.pick(&OPPOSITES);
            let (x, y) = if t.below(2) == 0 { (x, y) } else { (y, x) };
            (
                format!("What is the opposite of {x}?"),
                format!("The opposite of {x} is {y}."),
            )
        }
    }
}

fn sum(t: &mut Teller) -> (String, String) {
    let (x, y) = (t.below(10), t.below(10));
    let result = format!("{} plus {} is {}.", NUMBERS[x], NUMBERS[y], NUMBERS[x + y]);
    (
        format!("What is {} plus {}?", NUMBERS[x], NUMBERS[y]),
        capital(&result),
    )
}

/// A sentence about somebody, perhaps with a name that no other text has.
fn sentence(t: &mut Teller) -> String {
    let who = match t.below(3) {
        0 => t.made_up(),
        1 => t.pick(&NAMES).to_owned(),
        _ => format!("The {}", t.pick(&ANIMALS).kind),
    };
    let what = deed(t).1;
    match t.below(3) {
        0 => format!("{who} {what}."),
        1 => format!("{who} {what} on {}.", t.pick(&DAYS)),
        _ => format!(
            "On {} {} {what}.",
            t.pick(&DAYS),
            who.replacen("The", "the", 1)
        ),
    }
}

/// Something done, now and in the past.
fn deed(t: &mut Teller) -> (String, String) {
    let (now, past) = t.pick(&DEEDS);
    if now.ends_with("the") {
        let thing = format!("{} {}", t.pick(&COLORS), t.pick(&THINGS));
        (format!("{now} {thing}"), format!("{past} {thing}"))
    } else {
        (now.to_owned(), past.to_owned())
    }
}

fn copy(t: &mut Teller) -> (String, String) {
    if t.below(2) == 0 {
        let s = sentence(t);
        let n = 2 + t.below(3);
        return (
            format!("Say this {} times: {s}", NUMBERS[n]),
            vec![s; n].join(" "),
        );
    }
    let count = 2 + t.below(4);
    let note: Vec<String> = (0..count).map(|_| sentence(t)).collect();
    let note = note.join(" ");
    let ask = t.pick(&[
        "Copy this note",
        "Read this note to me",
        "Write this note again",
    ]);
    (
        format!("{ask}: {note}"),
        format!("Here is the note: {note}"),
    )
}

fn past(t: &mut Teller) -> (String, String) {
    let who = match t.below(2) {
        0 => t.pick(&NAMES).to_owned(),
        _ => format!("the {}", t.pick(&ANIMALS).kind),
    };
    let deeds: Vec<_> = (0..1 + t.below(3)).map(|_| deed(t)).collect();
    let now: Vec<&str> = deeds.iter().map(|d| d.0.as_str()).collect();
    let then: Vec<&str> = deeds.iter().map(|d| d.1.as_str()).collect();
    (
        format!("Put this in the past: Today {who} {}.", listed(&now)),
        format!("Yesterday {who} {}.", listed(&then)),
    )
}

fn told_story(t: &mut Teller) -> (String, String) {
    let hero = t.pick(&ANIMALS);
    let name = t.pick(&NAMES);
    let ask = t.pick(&[
        "Tell me a story about",
        "Please tell me a story about",
        "Write a story about",
    ]);
    (
        format!("{ask} {} named {name}.", a(hero.kind)),
        stories::story(t, hero, name),
    )
}
