use super::teller::{Teller, a, capital, listed};
use super::words::*;

pub fn story_of_anyone(t: &mut Teller) -> String {
    let hero = t.pick(&ANIMALS);
    let name = t.pick(&NAMES);
    story(t, hero, name)
}

/// A story in three parts: who, what happened, how it ended.
pub fn story(t: &mut Teller, hero: Animal, name: &str) -> String {
    let Animal {
        kind, home, food, ..
    } = hero;
    let nature = t.pick(&NATURES);
    let helper = t.other(&ANIMALS, hero);
    let friend = t.other(&NAMES, name);
    let time = t.pick(&TIMES);
    let place = t.pick(&PLACES);
    let mut s = format!(
        "Once upon a time there was a {nature} {kind} named {name}. {name} lived {home}. Every {time} {name} "
    );
    s += &match t.below(3) {
        0 => format!("ate some {food}. "),
        1 => format!("played {place}. "),
        _ => format!("sat {place} and sang a song. "),
    };
    s += &match t.below(5) {
        0 | 1 => lost(t, name, friend, helper),
        2 => hungry(t, name, friend, hero, helper),
        3 => storm(t, name, friend, helper),
        _ => birthday(t, name, friend, helper),
    };
    s += &match t.below(3) {
        0 => format!("From that day on {name} and {friend} were good friends."),
        1 => format!("That night {name} slept well {home}."),
        _ => format!("\"You are a good friend,\" said {friend}. And {name} the {kind} was happy."),
    };
    s
}

fn lost(t: &mut Teller, name: &str, friend: &str, helper: Animal) -> String {
    let thing = format!("{} {}", t.pick(&COLORS), t.pick(&THINGS));
    let places = t.several(&PLACES, 3);
    let mut s = format!(
        "One day {name} could not find the {thing}. {name} was very sad. \"Why are you so sad?\" asked {friend} \
         the {}. \"I cannot find my {thing},\" said {name}. \"I will help you,\" said {friend}. ",
        helper.kind
    );
    for place in &places[..1 + t.below(2)] {
        s += &format!("They looked {place}. The {thing} was not there. ");
    }
    s + &format!(
        "Then they looked {}, and there was the {thing}! \"Thank you, {friend},\" said {name}. ",
        places[2]
    )
}

fn hungry(t: &mut Teller, name: &str, friend: &str, hero: Animal, helper: Animal) -> String {
    let place = t.pick(&PLACES);
    let (food, other) = (hero.food, helper.food);
    format!(
        "One day {name} had no {food}. {name} looked {place}, but found no {food}. {name} was very hungry. \
         {friend} the {} had a basket of {other}. \"Would you like some {other}?\" asked {friend}. \"Yes, \
         please,\" said {name}. They ate the {other} {place}, and {name} was not hungry any more. ",
        helper.kind
    )
}

fn storm(t: &mut Teller, name: &str, friend: &str, helper: Animal) -> String {
    let place = t.pick(&PLACES);
    format!(
        "One night there was a big storm. The wind was strong and the rain was cold. {friend} the {} had no \
         home any more. \"Come in, {friend},\" said {name}. \"You can sleep here.\" In the morning they built \
         a new home {place}. On the first day they found the wood. On the second day they built the walls. On \
         the third day they built the roof. \"Thank you, {name},\" said {friend}. ",
        helper.kind
    )
}

fn birthday(t: &mut Teller, name: &str, friend: &str, helper: Animal) -> String {
    let thing = t.pick(&THINGS);
    let color = t.pick(&COLORS);
    let (kind, food) = (helper.kind, helper.food);
    format!(
        "It was the birthday of {friend} the {kind}. {name} had a {color} {thing} and some {food}. {name} put \
         the {color} {thing} and the {food} into a basket and walked to {friend}. \"Happy birthday, {friend},\" \
         said {name}. \"Here is a {color} {thing} for you.\" {friend} opened the basket and laughed. \"A \
         {color} {thing}! And some {food}! Thank you, {name},\" said {friend}. "
    )
}

/// Somebody buys something; the coins are counted right.
pub fn shop(t: &mut Teller) -> String {
    let seller = t.pick(&NAMES);
    let buyer = t.other(&NAMES, seller);
    let time = t.pick(&TIMES[..3]);
    let mut s = format!(
        "{buyer}: Good {time}, {seller}.\n{seller}: Good {time}, {buyer}. What would you like?\n"
    );
    let mut sum = 0;
    let goods = 1 + t.below(2);
    for (i, (good, price)) in t.several(&PRICES, goods).into_iter().enumerate() {
        let count = 2 + t.below(3);
        let number = NUMBERS[count];
        sum += count * price;
        let also = if i == 0 { "" } else { " also" };
        s += &format!("{buyer}: I would{also} like {number} {good}, please.\n");
        let coins = NUMBERS.get(count * price).copied().unwrap_or("many");
        s += &format!("{seller}: Here are {number} {good}. That is {coins} coins.\n");
    }
    let coins = NUMBERS.get(sum).copied().unwrap_or("many");
    s += &format!("{buyer}: Here are {coins} coins. Thank you, {seller}.\n");
    s + &format!("{seller}: Thank you, {buyer}. Goodbye.\n{buyer}: Goodbye, {seller}.")
}

/// A song whose refrain grows by an animal with every verse.
pub fn song(t: &mut Teller) -> String {
    let place = t.pick(&[
        "on the farm",
        "by the river",
        "in the forest",
        "on the hill",
    ]);
    let verses = 2 + t.below(3);
    let mut refrain = String::new();
    let mut s = String::new();
    for Animal { kind, sound, .. } in t.several(&ANIMALS, verses) {
        refrain = format!(
            "{}, {sound}, {sound}, says the {kind}.\n{refrain}",
            capital(sound)
        );
        s += &format!("There is {} {place}, hey ho, hey ho.\n{refrain}", a(kind));
        s += &format!("They sing all day {place}, hey ho, hey ho.\n\n");
    }
    s.trim_end().to_owned()
}

/// How to make a dish.
pub fn recipe(t: &mut Teller) -> (String, String) {
    let (dish, parts, vessel, last) = t.pick(&DISHES);
    let question = match t.below(2) {
        0 => format!("How do you make {dish}?"),
        _ => format!("Tell me how to make {dish}."),
    };
    let needed = listed(&parts);
    let mut s = format!("To make {dish} you need {needed}.\n1. Take a clean {vessel}.\n");
    for (i, part) in parts.iter().enumerate() {
        s += &format!("{}. Put the {part} into the {vessel}.\n", i + 2);
    }
    let made = dish.trim_start_matches("a ");
    (
        question,
        s + &format!("5. {last}.\nNow the {made} is ready!"),
    )
}
